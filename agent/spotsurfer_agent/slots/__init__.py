"""A machine that is kept: its keeper, and the slots in which one agent runs beside or after the other."""
