"""The table of HTTP: the endpoint module for each path prefix, without importing any.

A path belongs to its longest prefix (of whole steps) in the table. A module that is not installed is skipped.
"""

from __future__ import annotations

ENDPOINTS: dict[str, str] = {
    "/": "diamant.broker.http.page.views.overview",
    "/faults": "diamant.broker.http.page.views.faults",
    "/forget": "diamant.broker.http.page.views.forget",
    "/groups": "diamant.broker.http.page.views.groups",
    "/healthz": "diamant.broker.http.endpoints.running.health",
    "/history": "diamant.broker.http.page.views.history",
    "/live/faults": "diamant.broker.http.page.views.faults",
    "/live/groups": "diamant.broker.http.page.views.groups",
    "/live/overview": "diamant.broker.http.page.views.overview",
    "/live/topics": "diamant.broker.http.page.views.of_topics",
    "/login": "diamant.broker.http.page.views.login",
    "/readyz": "diamant.broker.http.endpoints.running.health",
    "/static": "diamant.broker.http.page.views.files",
    "/topics": "diamant.broker.http.page.views.of_topics",
    "/v1/certificates": "diamant.broker.http.endpoints.forgetting.certificate_files",
    "/v1/clock": "diamant.broker.http.endpoints.running.clock",
    "/v1/configs": "diamant.broker.http.endpoints.data.topic_changes",
    "/v1/faults": "diamant.broker.http.endpoints.running.faults",
    "/v1/find": "diamant.broker.http.endpoints.data.records",
    "/v1/groups": "diamant.broker.http.endpoints.data.writing",
    "/v1/history": "diamant.broker.http.endpoints.running.history",
    "/v1/latest": "diamant.broker.http.endpoints.data.records",
    "/v1/produce": "diamant.broker.http.endpoints.data.writing",
    "/v1/reset": "diamant.broker.http.endpoints.running.snapshots",
    "/v1/segments": "diamant.broker.http.endpoints.data.count",
    "/v1/snapshots": "diamant.broker.http.endpoints.running.snapshots",
    "/v1/status": "diamant.broker.http.endpoints.running.status",
}
"""Path prefix → module with `ROUTES`."""
