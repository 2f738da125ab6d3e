"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "attempt",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("since", sa.String(), nullable=False),
        sa.Column("pool", sa.JSON(), nullable=False),
        sa.Column("market", sa.String(), nullable=False),
        sa.Column("price_usd_micros_per_hour", sa.BigInteger(), nullable=False),
        sa.Column("list_price_usd_micros_per_hour", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("planned_at", sa.String(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("for_move", sa.Integer(), nullable=False),
        sa.Column("instance", sa.String(), nullable=True),
        sa.Column("granted_at", sa.String(), nullable=True),
        sa.Column("from_checkpoint", sa.String(), nullable=True),
        sa.Column("head_number", sa.Integer(), nullable=False),
        sa.Column("desired_sequence", sa.Integer(), nullable=False),
        sa.Column("desired_want", sa.String(), nullable=False),
        sa.Column("desired_save", sa.Integer(), nullable=False),
        sa.Column("launched_at", sa.String(), nullable=True),
        sa.Column("released_at", sa.String(), nullable=True),
        sa.Column("restore_failed", sa.Boolean(), nullable=False),
        sa.Column("reclaimed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("job", "number"),
        sa.UniqueConstraint("token"),
    )
    op.create_index(op.f("ix_attempt_state"), "attempt", ["state"], unique=False)
    op.create_table(
        "cooldown",
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("market", sa.String(), nullable=False),
        sa.Column("doc", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("pool", "market"),
    )
    op.create_table(
        "decision",
        sa.Column("number", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("done", sa.JSON(), nullable=False),
        sa.Column("rejected", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index(op.f("ix_decision_job"), "decision", ["job"], unique=False)
    op.create_table(
        "job",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("wish", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("submitted_at", sa.String(), nullable=False),
        sa.Column("ended_at", sa.String(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("save_at_least", sa.Integer(), nullable=False),
        sa.Column("moves_asked", sa.Integer(), nullable=False),
        sa.Column("move", sa.JSON(), nullable=True),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_job_state"), "job", ["state"], unique=False)
    op.create_table(
        "journal",
        sa.Column("number", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("begun_at", sa.String(), nullable=False),
        sa.Column("finished_at", sa.String(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index(op.f("ix_journal_action"), "journal", ["action"], unique=False)
    op.create_index(op.f("ix_journal_finished_at"), "journal", ["finished_at"], unique=False)
    op.create_table(
        "meta",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "moment",
        sa.Column("number", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index(op.f("ix_moment_job"), "moment", ["job"], unique=False)
    op.create_table(
        "price",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("usd_micros_per_hour", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "attempt", "at"),
    )
    op.create_table(
        "usage",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("cpu_seconds", sa.Float(), nullable=False),
        sa.Column("frozen_seconds", sa.Float(), nullable=False),
        sa.Column("saves", sa.Integer(), nullable=False),
        sa.Column("doc", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job", "attempt"),
    )
