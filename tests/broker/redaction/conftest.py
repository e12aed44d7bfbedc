"""A broker for redactions."""

from __future__ import annotations

from tests.broker.erasure.conftest import broker

__all__ = ["broker"]
