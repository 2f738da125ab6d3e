"""The front: one address for each port of a job, on whichever machine the job is, also while it sleeps."""
