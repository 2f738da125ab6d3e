"""Policies: one pure file each, found by entry point."""
