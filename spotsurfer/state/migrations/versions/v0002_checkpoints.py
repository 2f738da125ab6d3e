"""Going back to a checkpoint, copies of jobs, and whose fault a failed restore is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns."""
    with op.batch_alter_table("job") as job:
        job.add_column(sa.Column("rewind", sa.JSON(), nullable=True))
        job.add_column(sa.Column("parent", sa.JSON(), nullable=True))
        job.add_column(sa.Column("lineage", sa.String(), nullable=False, server_default=""))
    with op.batch_alter_table("attempt") as attempt:
        attempt.add_column(sa.Column("store_failed", sa.Boolean(), nullable=False, server_default="0"))
