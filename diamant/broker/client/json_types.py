"""Types of the values that `diamant.Admin` takes and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = "dict[str, Any]"
"""The decoded JSON object of a response; docs/reference/http.md describes each."""
Fields: TypeAlias = Mapping[str, Any]
Key: TypeAlias = "bytes | str | Mapping[str, str]"
OnProgress: TypeAlias = Callable[[JsonObject], object]
