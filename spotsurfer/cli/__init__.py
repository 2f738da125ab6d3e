"""The command line: a client of the HTTP API, never of the database."""
