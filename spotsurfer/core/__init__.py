"""The decisions: pure functions over the values in `model`. No clock, no randomness, no I/O."""
