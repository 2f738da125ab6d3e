"""The controller's work on jobs: submission, users' commands, secrets, ports, sizes."""
