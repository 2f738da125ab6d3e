"""The controller's work on checkpoints: garbage collection, forks, rehearsals, long operations."""
