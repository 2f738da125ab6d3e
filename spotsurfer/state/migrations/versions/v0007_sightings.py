"""What was said of machines by the cloud's events, and by their agents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """A row for an instance and a sign."""
    op.create_table(
        "sighting",
        sa.Column("instance", sa.String(), primary_key=True),
        sa.Column("sign", sa.String(), primary_key=True),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
    )
