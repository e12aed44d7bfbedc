"""The table of the page: the routes of all views."""

from __future__ import annotations

from diamant.broker.http.page.making import assets
from diamant.broker.http.page.making.rendering import refused
from diamant.broker.http.page.views import (
    faults,
    forget,
    groups,
    history,
    login,
    overview,
    records,
    settings,
    topic,
    topics,
)
from diamant.broker.http.serving.route import Route

ROUTES = (
    *overview.ROUTES,
    *topics.ROUTES,
    *topic.ROUTES,
    *settings.ROUTES,
    *records.ROUTES,
    *groups.ROUTES,
    *forget.ROUTES,
    *faults.ROUTES,
    *history.ROUTES,
    *login.ROUTES,
    Route("GET", "/static/{digest}/{name}", assets.serve, "A file of the page.", takes_any_query=True, refuse=refused),
)
