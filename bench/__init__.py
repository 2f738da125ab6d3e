"""Benchmarks of the checkpoint engine, side by side with plain CRIU and backup repositories on the same machine."""
