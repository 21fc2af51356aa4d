"""Thumbwheel turns human feedback into better policies, and keeps doing it."""

__version__ = "0.1.0"
