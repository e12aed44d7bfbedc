"""Handlers of records and log directories."""
