"""Runs the migrations on the connection that `thumbwheel.stores.migrate` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from thumbwheel.stores.migrate import VERSION_TABLE
from thumbwheel.stores.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
    transactional_ddl=True,
)
context.run_migrations()
