"""Going back to a checkpoint, copies of jobs, and whose fault a failed restore is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    with op.batch_alter_table("job") as job:
        job.add_column(sa.Column("rewind", sa.JSON(), nullable=True))
        job.add_column(sa.Column("parent", sa.JSON(), nullable=True))
        job.add_column(sa.Column("lineage", sa.String(), nullable=False, server_default=""))
    with op.batch_alter_table("attempt") as attempt:
        attempt.add_column(sa.Column("store_failed", sa.Boolean(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Remove them."""
    with op.batch_alter_table("attempt") as attempt:
        attempt.drop_column("store_failed")
    with op.batch_alter_table("job") as job:
        for name in ("lineage", "parent", "rewind"):
            job.drop_column(name)
