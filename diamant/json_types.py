"""Types for JSON that is passed on unchanged: certificates, reports, messages to a worker, the results of `diamant.Admin`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = "dict[str, Any]"
"""A JSON object; docs/reference/http.md describes the objects in responses."""
Fields: TypeAlias = Mapping[str, Any]
Key: TypeAlias = "bytes | str | Mapping[str, str]"
OnProgress: TypeAlias = Callable[[JsonObject], object]
