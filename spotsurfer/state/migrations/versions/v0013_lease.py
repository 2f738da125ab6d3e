"""The lease that a machine was given with its order: the setting may change while it runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Machines that were ordered before go by the setting, as they did."""
    op.add_column("attempt", sa.Column("lease_seconds", sa.Float()))


def downgrade() -> None:
    """Forget it."""
    with op.batch_alter_table("attempt") as attempt:
        attempt.drop_column("lease_seconds")
