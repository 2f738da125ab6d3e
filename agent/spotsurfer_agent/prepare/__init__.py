"""What is brought to a machine before a job starts or goes on there."""
