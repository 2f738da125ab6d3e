"""The store as an agent reaches it: with credentials, retries, a fence and a cache."""
