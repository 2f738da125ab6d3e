"""CRIU's command line and image files, and what of a process CRIU leaves out."""
