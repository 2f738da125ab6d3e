"""How many GPUs a machine has, and for which job of higher priority another one left."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Of machines that were bought before, nobody knows how many GPUs they have."""
    op.add_column("attempt", sa.Column("gpus", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("attempt", sa.Column("gave_way_to", sa.String(), nullable=False, server_default=""))
