"""Policies: pure functions and classes, found by entry point."""
