"""Requests for the outputs of a job that runs on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Jobs count the requests, attempts remember the newest that they were told of."""
    op.add_column("job", sa.Column("partials_asked", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("attempt", sa.Column("desired_partial", sa.Integer(), nullable=False, server_default="0"))
