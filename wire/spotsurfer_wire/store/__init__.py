"""Objects in shared storage: the port, and obstore behind it."""
