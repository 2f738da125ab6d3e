"""What runs on the GPU: `python NAME.py GIGABYTES STEPS` prints "step N …", and at its end "final …" of its whole state."""
