"""When to save, and which checkpoints stay. Pure."""
