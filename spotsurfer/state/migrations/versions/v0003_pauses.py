"""How long a move stopped its job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Attempts remember the pause that the job had before it ran there."""
    op.add_column("attempt", sa.Column("pause_seconds", sa.Float(), nullable=True))
