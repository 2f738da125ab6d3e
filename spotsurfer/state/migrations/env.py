"""Alembic's entry: `spotsurfer.state.db` hands over the connection."""

from __future__ import annotations

from alembic import context

from spotsurfer.state.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
