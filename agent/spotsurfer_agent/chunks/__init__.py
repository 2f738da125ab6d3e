"""Files as content-addressed pieces in the store."""
