"""What a job runs on: its root, network, control group, launch, and the tools beside it."""
