"""Interfaces of the agent that have several implementations."""
