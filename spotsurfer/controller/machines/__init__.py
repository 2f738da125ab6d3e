"""The controller's work on machines: user-data, credentials, SSH, interruption events."""
