"""Handlers for transactions and producers."""
