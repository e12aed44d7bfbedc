"""Handlers for records and log directories."""
