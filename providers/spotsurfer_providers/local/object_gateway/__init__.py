"""The folder of objects that boxes use as their store, and the S3 dialect that they use to reach it."""
