"""What a job stands on: its root, network, control group, first instants, and the tools beside it."""
