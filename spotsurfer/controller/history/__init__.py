"""What the controller remembers: outcomes of attempts, spot availability, usage."""
