"""Interfaces (Protocols) and their contracts; nothing else."""
