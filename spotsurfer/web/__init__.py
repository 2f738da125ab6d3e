"""The HTTP API: a Unix socket by default, TCP with a token."""
