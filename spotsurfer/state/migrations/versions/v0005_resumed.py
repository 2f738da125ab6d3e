"""When a job was resumed by its user."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Jobs remember their last resumption: failures before it do not count against a new try."""
    op.add_column("job", sa.Column("resumed_at", sa.String(), nullable=True))
