"""Tokens of several people, and who did what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Both begin empty: the token file opens the API as before."""
    op.create_table(
        "token",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("made_at", sa.String(), nullable=False),
        sa.Column("expires_at", sa.String()),
        sa.Column("used_at", sa.String()),
        sa.Column("revoked_at", sa.String()),
    )
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("at", sa.String(), nullable=False, index=True),
        sa.Column("who", sa.String(), nullable=False, index=True),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("via", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("what", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False, index=True),
        sa.Column("status", sa.Integer(), nullable=False),
    )
