"""Budgets of several jobs that are set by command, and what each budget told of each of its times."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Both begin empty."""
    op.create_table(
        "budget",
        sa.Column("scope", sa.String(), primary_key=True),
        sa.Column("per", sa.String(), primary_key=True),
        sa.Column("usd_micros", sa.BigInteger(), nullable=False),
        sa.Column("warn_at", sa.JSON(), nullable=False),
        sa.Column("set_at", sa.String(), nullable=False),
        sa.Column("set_by", sa.String(), nullable=False),
    )
    op.create_table(
        "budget_told",
        sa.Column("scope", sa.String(), primary_key=True),
        sa.Column("per", sa.String(), primary_key=True),
        sa.Column("begins", sa.String(), primary_key=True),
        sa.Column("share", sa.Integer(), primary_key=True),
        sa.Column("usd_micros", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
    )
