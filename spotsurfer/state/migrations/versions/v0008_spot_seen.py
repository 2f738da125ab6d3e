"""Whether spot could be had in a pool, over time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """A row where it changed."""
    op.create_table(
        "spot_seen",
        sa.Column("pool", sa.String(), primary_key=True),
        sa.Column("at", sa.String(), primary_key=True),
        sa.Column("up", sa.Boolean()),
    )
