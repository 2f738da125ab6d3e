"""The data model: frozen values that all packages share. It imports no other package of this project."""
