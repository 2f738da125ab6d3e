"""Banks of models that ship with the policies; README.md says where they come from and how they are made again."""
