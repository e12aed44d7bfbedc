"""Handlers of transactions and producers."""
