"""Which module answers below which path: the whole table of HTTP, without importing any of it.

A path belongs to the longest prefix (of whole steps) that is here. A module that is not installed is skipped.
"""

from __future__ import annotations

MODULES: dict[str, str] = {
    "/healthz": "diamant.broker.http_health",
    "/readyz": "diamant.broker.http_health",
    "/v1/cancel": "diamant.broker.http_cancel",
    "/v1/certificates": "diamant.broker.http_erase",
    "/v1/clock": "diamant.broker.http_clock",
    "/v1/compact": "diamant.broker.http_compact",
    "/v1/count": "diamant.broker.http_count",
    "/v1/erase": "diamant.broker.http_erase",
    "/v1/explain": "diamant.broker.http_explain",
    "/v1/faults": "diamant.broker.http_faults",
    "/v1/latest": "diamant.broker.http_latest",
    "/v1/redact": "diamant.broker.http_redact",
    "/v1/status": "diamant.broker.http_status",
    "/v1/verify": "diamant.broker.http_erase",
}
"""Path prefix → module with `ROUTES`."""


def module_of(path: str) -> str | None:
    """Return the module that a path belongs to; None if nobody has it."""
    steps = path.split("/")
    for count in range(len(steps), 1, -1):
        found = MODULES.get("/".join(steps[:count]))
        if found is not None:
            return found
    return None
