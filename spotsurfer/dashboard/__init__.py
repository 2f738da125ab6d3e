"""Pages for browsers, rendered on the server: what `web/app.py` mounts beside the API."""
