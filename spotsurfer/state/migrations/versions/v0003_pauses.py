"""How long a move stopped its job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Attempts remember the pause that the job had before it ran there."""
    op.add_column("attempt", sa.Column("pause_seconds", sa.Float(), nullable=True))


def downgrade() -> None:
    """Forget it."""
    with op.batch_alter_table("attempt") as attempt:
        attempt.drop_column("pause_seconds")
