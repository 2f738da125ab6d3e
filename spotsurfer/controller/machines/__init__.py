"""What the controller does with machines: user-data, credentials, SSH, interruption events."""
