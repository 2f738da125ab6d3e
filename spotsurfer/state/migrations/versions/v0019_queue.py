"""Arrays, what must come before a job, time limits; and columns that tell many queued jobs apart without reading them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
TEXTS = ("array", "ended_by", "signal", "name", "project", "shape", "waits_for")
NUMBERS = ("number", "signals_asked", "priority", "array_limit", "cpus", "gpus")


def upgrade() -> None:
    """Jobs from before are numbered in the order in which they were submitted."""
    for name in TEXTS:
        op.add_column("job", sa.Column(name, sa.String(), nullable=False, server_default=""))
    for name in NUMBERS:
        op.add_column("job", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
    op.add_column("attempt", sa.Column("signals_told", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("attempt", sa.Column("signal", sa.String(), nullable=False, server_default=""))
    op.add_column("job", sa.Column("memory_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("job", sa.Column("task", sa.Integer()))
    op.add_column("job", sa.Column("time_limit_seconds", sa.Float()))
    op.add_column("job", sa.Column("begins_at", sa.String()))
    op.add_column("job", sa.Column("pressing", sa.Boolean(), nullable=False, server_default="0"))
    told = {"name": "''", "project": "''", "priority": "0", "cpus": "1", "gpus": "0", "memory_bytes": "0"}
    copied = "".join(f"{name} = coalesce(json_extract(spec, '$.{name}'), {none}), " for name, none in told.items())
    op.execute(
        f"UPDATE job SET {copied} shape = job.id, number = nth.n, "  # noqa: S608 - names and values stand above
        "pressing = json_extract(spec, '$.deadline_seconds') IS NOT NULL "
        "FROM (SELECT id, row_number() OVER (ORDER BY submitted_at, id) AS n FROM job) AS nth WHERE nth.id = job.id"
    )
    op.create_table(
        "dependency",
        sa.Column("job", sa.String(), primary_key=True),
        sa.Column("kind", sa.String(), primary_key=True),
        sa.Column("on", sa.String(), primary_key=True),
        sa.Column("never", sa.Text(), nullable=False),
    )
    op.create_index("ix_dependency_on", "dependency", ["on", "kind"])
    op.create_index("ix_job_number", "job", ["number"])
    op.create_index("ix_job_array", "job", ["array", "state", "submitted_at"])
    op.create_index("ix_job_name", "job", ["name", "owner"])
    op.create_index("ix_job_limited", "job", ["state", "wish", "waits_for", "array", "array_limit"])
    op.create_index("ix_job_pressing", "job", ["pressing", "state"])
    op.create_index("ix_job_queue", "job", ["state", "wish", "waits_for", "shape", "priority", "submitted_at", "id"])
