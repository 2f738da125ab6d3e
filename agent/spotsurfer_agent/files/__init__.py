"""Files of a job: its scratch folder, trees in manifests, inode numbers, inputs in and results out."""
