"""What is laid into every job for programs that want to help."""
