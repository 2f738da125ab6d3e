"""Who submitted a job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Of jobs from before, nobody knows who submitted them: operators alone see those."""
    op.add_column("job", sa.Column("owner", sa.String(), nullable=False, server_default=""))
    op.create_index("ix_job_owner", "job", ["owner"])
