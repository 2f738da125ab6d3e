"""What the kernel tells of processes, control groups and memory."""
