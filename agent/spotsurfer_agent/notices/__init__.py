"""Metadata services: a dialect each, one watcher for all."""
