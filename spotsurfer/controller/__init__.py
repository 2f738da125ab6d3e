"""The shell around the core: observe, decide, apply, record."""
