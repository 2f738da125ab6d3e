"""Ways to save a running program."""
