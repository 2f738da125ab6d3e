"""What this machine can and can't do, with the remedy for each."""
