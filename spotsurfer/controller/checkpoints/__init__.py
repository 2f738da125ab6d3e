"""What the controller does with checkpoints: garbage collection, forks, rehearsals, long operations."""
