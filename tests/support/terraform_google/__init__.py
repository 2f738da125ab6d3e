"""What stands in for Terraform's Google provider where that can't be had: its schema, and a server that tells it."""
