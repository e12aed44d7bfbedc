"""`/healthz` and `/readyz`, for the probes of Kubernetes. `/health` reports the same and more, for people.

/healthz            200 whenever the broker answers; if it does not, restart it
/healthz?erasure    503 while a superseded or deleted record is still stored after `diamant.erasure.deadline.ms`;
                    200 with the status `cannot-be-told` and the affected partitions if this is unknown
/readyz             200 if the broker accepts clients; 503 while it is stopping
"""

from __future__ import annotations

from aiohttp import web

from diamant.broker.http.serving.authorization import OPEN
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.metrics.erasure_deadline import take_deadlines
from diamant.broker.metrics.figures import offline_partitions
from diamant.broker.operations.calls.parameters import Param


async def healthz(call: Call) -> web.Response:
    """Report that the broker is alive; with `erasure`, report the topics past their erasure deadline."""
    if not call.query["erasure"]:
        return web.json_response({"status": "ok"})
    found = await take_deadlines(call.services.node, call.services.cleaning)
    late = [one for one in found if one.is_late]
    not_told = [{"topic": one.topic, "partitions": one.not_told} for one in found if one.not_told]
    fields = {
        "status": "late" if late else "cannot-be-told" if not_told else "ok",
        "deadline_ms": call.services.node.config.diamant_erasure_deadline_ms,
        "topics": [one.to_fields() for one in late],
        "not_told": not_told,
    }
    return web.json_response(fields, status=503 if late else 200)


async def readyz(call: Call) -> web.Response:
    """Report whether the broker accepts clients."""
    node = call.services.node
    offline = offline_partitions(node)
    is_stopping = node.is_stopping
    fields = {"status": "stopping" if is_stopping else "ok", "partitions_offline": offline}
    return web.json_response(fields, status=503 if is_stopping else 200)


ROUTES = (
    Route(
        "GET",
        "/healthz",
        healthz,
        "Whether the broker is alive; with ?erasure also whether every erasure deadline is met (503: no).",
        query=(Param("erasure", "boolean", "Also check the erasure deadlines.", default=False),),
        permission=OPEN,
    ),
    Route("GET", "/readyz", readyz, "Whether the broker accepts clients (503: no).", permission=OPEN),
)
