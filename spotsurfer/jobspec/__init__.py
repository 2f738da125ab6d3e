"""From a user's job file and options to a checked specification."""
