"""A tether between this host and its jobs: connections over it outlive the moves of a job."""
