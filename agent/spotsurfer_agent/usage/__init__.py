"""What the job uses, sampled once a second, kept as windows of ten seconds."""
