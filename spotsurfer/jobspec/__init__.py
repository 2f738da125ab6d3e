"""The job file and options: from what a user writes to a checked specification."""
