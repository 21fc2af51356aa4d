"""Bytes at rest: the store protocol and its SQLite/PostgreSQL implementation, snapshots, checkpoints."""
