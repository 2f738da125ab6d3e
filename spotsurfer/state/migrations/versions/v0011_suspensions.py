"""Who suspended a job, and where its ports are answered."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Jobs that are held now were held by their users or by a limit."""
    op.add_column("job", sa.Column("held_by", sa.String(), nullable=False, server_default=""))
    op.create_table(
        "front",
        sa.Column("job", sa.String(), primary_key=True),
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("listens", sa.Integer(), nullable=False, unique=True),
    )
