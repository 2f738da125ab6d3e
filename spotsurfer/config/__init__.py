"""The operator's settings, and where files lie."""
