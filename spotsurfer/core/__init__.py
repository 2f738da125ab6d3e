"""Verbs: pure functions over the nouns. No clock, no chance, no I/O."""
