"""What the controller does with jobs: submission, users' commands, secrets, ports, sizes."""
