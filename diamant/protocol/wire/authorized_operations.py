"""Authorized operations in responses: bit sets, bit n for operation n of AclOperation (KIP-430)."""

from __future__ import annotations

NOT_REQUESTED = -(1 << 31)
"""The value in a response if the client did not request them."""
