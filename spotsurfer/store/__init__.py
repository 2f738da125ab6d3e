"""The controller's side of shared storage: head logs, reports, checkpoints, output, keys."""
