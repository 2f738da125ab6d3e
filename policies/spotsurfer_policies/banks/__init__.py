"""Banks of models that ship with the policies; README.md names their source and the command that makes them."""
