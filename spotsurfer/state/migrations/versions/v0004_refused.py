"""Machines that could not go on with a checkpoint."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Attempts remember that their machine's facts forbade the restore."""
    op.add_column("attempt", sa.Column("restore_refused", sa.Boolean(), nullable=False, server_default="0"))
