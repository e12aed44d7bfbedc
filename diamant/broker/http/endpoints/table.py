"""The table of HTTP: the module that answers below a path, without importing any.

A path belongs to the longest prefix (of whole steps) that is here. A module that is not installed is skipped.
"""

from __future__ import annotations

ENDPOINTS: dict[str, str] = {
    "/": "diamant.broker.http.page.views",
    "/faults": "diamant.broker.http.page.views",
    "/forget": "diamant.broker.http.page.views",
    "/groups": "diamant.broker.http.page.views",
    "/healthz": "diamant.broker.http.endpoints.health",
    "/history": "diamant.broker.http.page.views",
    "/live": "diamant.broker.http.page.views",
    "/login": "diamant.broker.http.page.views",
    "/readyz": "diamant.broker.http.endpoints.health",
    "/static": "diamant.broker.http.page.views",
    "/topics": "diamant.broker.http.page.views",
    "/v1/cancel": "diamant.broker.http.endpoints.cancel",
    "/v1/certificates": "diamant.broker.http.endpoints.erase",
    "/v1/clock": "diamant.broker.http.endpoints.clock",
    "/v1/compact": "diamant.broker.http.endpoints.compact",
    "/v1/configs": "diamant.broker.http.endpoints.topic_changes",
    "/v1/count": "diamant.broker.http.endpoints.count",
    "/v1/erase": "diamant.broker.http.endpoints.erase",
    "/v1/explain": "diamant.broker.http.endpoints.explain",
    "/v1/faults": "diamant.broker.http.endpoints.faults",
    "/v1/find": "diamant.broker.http.endpoints.records",
    "/v1/ghosts": "diamant.broker.http.endpoints.explain",
    "/v1/history": "diamant.broker.http.endpoints.history",
    "/v1/latest": "diamant.broker.http.endpoints.records",
    "/v1/redact": "diamant.broker.http.endpoints.redact",
    "/v1/reset": "diamant.broker.http.endpoints.snapshots",
    "/v1/roll": "diamant.broker.http.endpoints.topic_changes",
    "/v1/segments": "diamant.broker.http.endpoints.count",
    "/v1/snapshots": "diamant.broker.http.endpoints.snapshots",
    "/v1/status": "diamant.broker.http.endpoints.status",
    "/v1/verify": "diamant.broker.http.endpoints.erase",
}
"""Path prefix → module with `ROUTES`."""
