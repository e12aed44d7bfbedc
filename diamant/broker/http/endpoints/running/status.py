"""The state of the broker, over HTTP: `/v1/status`.

GET /v1/status      its identity, its clock, its cleaner by partition
"""

from __future__ import annotations

from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operations.running.status import BrokerStatus, broker_status


async def show(call: Call) -> BrokerStatus:
    """Return the state of the broker."""
    services = call.services
    return broker_status(services.node, services.cleaning.status(), services.clock().state(), services.transactions)


ROUTES = (Route("GET", "/v1/status", show, "The broker, its clock, and the progress of its cleaner."),)
