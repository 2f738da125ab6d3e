"""GPU memory of a job's processes: what the driver can do with it, in a process of its own."""
