"""Facts for the rules about an attempt, its ownership and its pool. Pure."""
