"""How often a job is saved where it runs, and whether a machine's last checkpoint was made in time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Of machines that ended before, the reason tells whether they were drained."""
    op.add_column("attempt", sa.Column("drained", sa.Boolean(), nullable=False, server_default="0"))
    op.add_column("attempt", sa.Column("pace_seconds", sa.Float()))
    op.add_column("attempt", sa.Column("pace_saves", sa.Integer(), nullable=False, server_default="-1"))
    op.add_column("attempt", sa.Column("pace_why", sa.Text(), nullable=False, server_default=""))
    op.execute("UPDATE attempt SET drained = 1 WHERE reason = 'drained' OR state = 'drained'")
