"""The lease that a machine was given with its order: the setting may change while it runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Machines that were ordered before go by the setting, as they did."""
    op.add_column("attempt", sa.Column("lease_seconds", sa.Float()))
