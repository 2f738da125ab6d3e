"""What bills need beside prices: disks and addresses of machines, stored bytes, and what agents counted each day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Of attempts from before only the last report is known: all that they counted is of its day."""
    op.add_column("attempt", sa.Column("disk_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("attempt", sa.Column("public_address", sa.Boolean(), nullable=False, server_default="0"))
    op.create_table(
        "stored",
        sa.Column("job", sa.String(), primary_key=True),
        sa.Column("at", sa.String(), primary_key=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_stored_at", "stored", ["at"])
    op.create_table(
        "counted",
        sa.Column("job", sa.String(), primary_key=True),
        sa.Column("attempt", sa.Integer(), primary_key=True),
        sa.Column("day", sa.String(), primary_key=True),
        sa.Column("at", sa.String(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("read_bytes", "sent_bytes", "gets", "puts")),
    )
    op.create_index("ix_counted_at", "counted", ["at"])
    op.execute(
        "INSERT INTO counted SELECT job, attempt, substr(at, 1, 10), at, coalesce(json_extract(doc, '$.store_read_bytes'), 0), "
        "coalesce(json_extract(doc, '$.store_sent_bytes'), 0), 0, 0 FROM usage"
    )
