"""What runs on the GPU. Each: `python NAME.py GIGABYTES STEPS`, prints "step N …" and ends with a line "final …" of its whole state."""
