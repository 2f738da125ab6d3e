"""The front: one address for each port of a job, wherever the job is, and whether it sleeps or not."""
