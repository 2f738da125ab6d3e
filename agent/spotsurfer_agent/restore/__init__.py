"""Bringing a saved job back to life."""
