"""Saving a running job: the steps of a save, memory copied ahead, and what would block a save."""
