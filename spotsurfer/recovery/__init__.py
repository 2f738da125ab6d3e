"""Remedies against the loss of a controller: back up, restore, and adopt a store after its database is lost."""
