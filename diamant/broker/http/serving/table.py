"""The table of HTTP: the endpoint module for each path prefix, without importing any.

A path belongs to its longest prefix (of whole steps) in the table. A module that is not installed is skipped.
"""

from __future__ import annotations

ENDPOINTS: dict[str, str] = {
    "/": "diamant.broker.http.page.views.overview",
    "/faults": "diamant.broker.http.page.views.faults",
    "/forget": "diamant.broker.http.page.views.forget",
    "/groups": "diamant.broker.http.page.views.groups",
    "/healthz": "diamant.broker.http.endpoints.health",
    "/history": "diamant.broker.http.page.views.history",
    "/live/faults": "diamant.broker.http.page.views.faults",
    "/live/groups": "diamant.broker.http.page.views.groups",
    "/live/overview": "diamant.broker.http.page.views.overview",
    "/live/topics": "diamant.broker.http.page.views.topics",
    "/login": "diamant.broker.http.page.views.login",
    "/people": "diamant.broker.http.page.views.people",
    "/readyz": "diamant.broker.http.endpoints.health",
    "/static": "diamant.broker.http.page.views.static_files",
    "/topics": "diamant.broker.http.page.views.topics",
    "/v1/certificates": "diamant.broker.http.endpoints.certificate_files",
}
"""Path prefix → module with `ROUTES`."""
