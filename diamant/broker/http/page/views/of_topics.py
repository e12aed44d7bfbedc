"""All views below `/topics`: the list, a topic, its settings, its records."""

from __future__ import annotations

from diamant.broker.http.page.views import records, settings, topic, topics

ROUTES = (*topics.ROUTES, *topic.ROUTES, *settings.ROUTES, *records.ROUTES)
