"""What is laid into every job for programs that want to help: a Python module and a shell command. See `hints`."""
