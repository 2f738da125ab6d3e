"""Metadata services: a dialect each, one Notice."""
