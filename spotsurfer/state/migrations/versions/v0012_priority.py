"""How many GPUs a machine has, and for which job of higher priority another one left."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of machines that were bought before, nobody knows how many GPUs they have."""
    op.add_column("attempt", sa.Column("gpus", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("attempt", sa.Column("gave_way_to", sa.String(), nullable=False, server_default=""))


def downgrade() -> None:
    """Forget them."""
    with op.batch_alter_table("attempt") as attempt:
        attempt.drop_column("gave_way_to")
        attempt.drop_column("gpus")
