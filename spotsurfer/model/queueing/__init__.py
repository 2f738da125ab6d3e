"""Many jobs from one, and what a job waits for, as values: arrays and dependencies."""
