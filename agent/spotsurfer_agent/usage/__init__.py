"""What the job uses, by cgroup."""
