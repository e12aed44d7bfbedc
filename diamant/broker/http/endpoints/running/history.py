"""The history of figures over HTTP: `GET /v1/history`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.errors import NotFound
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operations.calls.parameters import Param


async def show(call: Call) -> Mapping[str, Any]:
    """Return the series of the broker, or of a topic. NotFound."""
    history = call.services.history()
    found = history.to_fields(call.query["topic"], call.query["since_ms"])
    if found is None:
        raise NotFound("this topic has no history: the largest topics have one, from the first use of the history on")
    return {**found, "topics": history.topics()}


ROUTES = (
    Route(
        "GET",
        "/v1/history",
        show,
        "Figures of the last 24 hours, every 30 seconds: bytes, rates, 99th percentiles, records removed, memory; rounds.",
        query=(
            Param("topic", "string", "One topic. Default: the whole broker."),
            Param("since_ms", "integer", "Only from this time on, in real time.", default=0),
        ),
        answer=(
            "`times_ms`, and `series`: one value per time, by name; null if unknown. Recorded from the first use on. `rounds`: "
            "the last 100 finished rounds, with the records removed by reason, and `ended_ms` on the broker's clock."
        ),
    ),
)
