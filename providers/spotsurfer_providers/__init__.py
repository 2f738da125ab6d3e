"""Clouds behind one interface."""
