"""Files to content-addressed chunks in the store."""
