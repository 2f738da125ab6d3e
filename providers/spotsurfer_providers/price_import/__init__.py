"""Makes a table of Google's prices of today from its billing catalogue: `python -m spotsurfer_providers.price_import`."""
