"""Checkpoint engines behind one protocol."""
