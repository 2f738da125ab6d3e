"""What rules may ask about an attempt, its ownership and its pool. Pure."""
