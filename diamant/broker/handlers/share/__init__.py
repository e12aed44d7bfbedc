"""Handlers for share groups (KIP-932)."""
