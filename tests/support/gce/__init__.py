"""A test Compute Engine: what the provider `gcp` asks, held to Google's published description of the API on both sides.

`document` checks requests and answers against that description. `cloud` has the VMs and operations, with the errors, delays and
quirks that Google documents. `server` speaks HTTP. It knows no more than the tests use.
"""
