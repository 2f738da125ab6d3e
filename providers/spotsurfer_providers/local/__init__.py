"""Instances as boxes on this host."""
