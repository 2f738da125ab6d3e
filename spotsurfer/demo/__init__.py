"""The demonstration: a real assembly surfs across boxes on this host and ends with the bytes of an undisturbed run."""
