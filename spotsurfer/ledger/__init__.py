"""Billing rules and the cost report."""
