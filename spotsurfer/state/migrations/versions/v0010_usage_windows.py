"""What jobs used, over time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """A row a window."""
    op.create_table(
        "usage_window",
        sa.Column("job", sa.String(), primary_key=True),
        sa.Column("attempt", sa.Integer(), primary_key=True),
        sa.Column("number", sa.BigInteger(), primary_key=True),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("slices", sa.Integer(), nullable=False),
        sa.Column("row", sa.JSON(), nullable=False),
    )
    op.create_index("ix_usage_window_at", "usage_window", ["at"])
