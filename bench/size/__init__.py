"""Benchmarks of size policies on recorded runs: `make bench-size`."""
