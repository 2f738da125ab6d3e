"""A process that brings a job's memory: an image server for CRIU and, for a lazy restore, a server of page faults."""
