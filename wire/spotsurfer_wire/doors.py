"""The ports of a machine through which a job can be reached."""

from __future__ import annotations

# The machine's port for the first port that a job declared; the second gets the next. No system assigns these by itself.
DOOR = 20400
