"""The ports of a machine through which a job can be reached."""

from __future__ import annotations

# The machine's port for the first port that a job declared; the second has the next. No system gives these out by itself.
DOOR = 20400
