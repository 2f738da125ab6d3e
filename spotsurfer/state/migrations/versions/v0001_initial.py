"""The first tables.

The tables are made from `spotsurfer.state.schema` as it was at this revision; later revisions change them step by step.
"""

from __future__ import annotations

from alembic import op

from spotsurfer.state.schema import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make every table."""
    metadata.create_all(op.get_bind())


def downgrade() -> None:
    """Remove every table."""
    metadata.drop_all(op.get_bind())
