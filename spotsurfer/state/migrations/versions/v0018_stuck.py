"""Since when a job is alive and makes no progress."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """No job is known to be stuck."""
    op.add_column("job", sa.Column("stuck_since", sa.String()))
