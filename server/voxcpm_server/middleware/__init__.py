"""Middleware around every request."""
