"""Reading chunks of files from the store."""
