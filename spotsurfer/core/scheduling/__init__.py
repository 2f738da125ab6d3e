"""Decides which job runs where: offers, limits, preemption, sizes, deadlines, suspension. Pure."""
