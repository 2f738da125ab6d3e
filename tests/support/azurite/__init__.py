"""Azure's blob storage for tests: Azurite, its lock, and a server of it."""
