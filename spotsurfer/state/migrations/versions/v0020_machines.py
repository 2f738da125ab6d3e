"""Machines have a table of their own: attempts refer to them, and several may live on one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

FACTS = ["pool", "market", "price_usd_micros_per_hour", "list_price_usd_micros_per_hour", "gpus", "disk_bytes"]
FACTS += ["public_address", "instance"]


def upgrade() -> None:
    """Each attempt had a machine for itself."""
    op.create_table(
        "machine",
        sa.Column("token", sa.String(), primary_key=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("since", sa.String(), nullable=False),
        sa.Column("pool", sa.JSON(), nullable=False),
        sa.Column("market", sa.String(), nullable=False),
        sa.Column("price_usd_micros_per_hour", sa.BigInteger(), nullable=False),
        sa.Column("list_price_usd_micros_per_hour", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False, server_default=""),
        sa.Column("cpus", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("gpus", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("disk_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("public_address", sa.Boolean(), nullable=False, server_default="0"),
        sa.Column("keep_seconds", sa.Float(), nullable=False, server_default="0"),
        sa.Column("slots", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("instance", sa.String()),
        sa.Column("launched_at", sa.String()),
        sa.Column("released_at", sa.String()),
        sa.Column("idle_since", sa.String()),
        sa.Column("reclaimed", sa.Boolean(), nullable=False, server_default="0"),
        sa.Column("reason", sa.Text(), nullable=False, server_default=""),
    )
    op.create_index("ix_machine_state", "machine", ["state"])
    columns = ", ".join([*FACTS, "since", "launched_at", "released_at", "reclaimed", "reason"])
    state = "CASE WHEN state IN ('planned', 'requested', 'releasing', 'released', 'refused') THEN state ELSE 'up' END"
    op.execute(f"INSERT INTO machine (token, version, state, {columns}) SELECT token, 1, {state}, {columns} FROM attempt")  # noqa: S608
    names = {"uq": "uq_%(table_name)s_%(column_0_name)s"}
    with op.batch_alter_table("attempt", recreate="always", naming_convention=names) as attempt:
        attempt.add_column(sa.Column("slot", sa.Integer(), nullable=False, server_default="0"))
        attempt.drop_constraint("uq_attempt_token", type_="unique")
        for name in FACTS:
            attempt.drop_column(name)
    op.create_index("ix_attempt_token", "attempt", ["token"])
