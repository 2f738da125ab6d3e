"""The engines: ways to save a running program, and the choice among them."""
