"""What the controller keeps in shared storage: heads, desired and report objects."""
