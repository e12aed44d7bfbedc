"""Compact and wait over HTTP: `POST /v1/compact`. docs/how-to/compact-on-demand.md has examples.

{"topic": "users", "until": "clean"}        the report, or the job that will return it
"""

from __future__ import annotations

from diamant.broker.http.serving.route import Call, Param, Route
from diamant.broker.operations.compactions.compact import MAX_TIMEOUT_MS
from diamant.cleaner.on_demand.report import CLEAN, UNTIL, CompactionReport
from diamant.cleaner.on_demand.request import CompactRequest
from diamant.cleaner.rules.modes import ENGINES


async def compact(call: Call) -> CompactionReport:
    """Clean a topic, or one partition."""
    fields = call.fields
    request = CompactRequest(
        fields["topic"],
        fields["partition"],
        until=fields["until"],
        timeout_ms=fields["timeout_ms"],
        is_forced=fields["forced"],
        return_at_horizon=fields["return_at_horizon"],
        engine=fields["engine"],
    )
    return await call.services.compactions().compact(request, call.progress)


ROUTES = (
    Route(
        "POST",
        "/v1/compact",
        compact,
        "Compact a topic now, wait until it is clean, and report the records removed and kept.",
        fields=(
            Param("topic", "string", "The topic; its cleanup.policy must include compact.", is_required=True),
            Param("partition", "integer", "One partition. Default: all.", most=(1 << 31) - 1),
            Param("until", "string", "The goal: tombstones-gone also waits for horizons.", CLEAN, choices=UNTIL),
            Param("forced", "boolean", "Ignore min.compaction.lag.ms.", default=False),
            Param(
                "return_at_horizon",
                "boolean",
                "With tombstones-gone: do not wait for the horizons; the response has the last one (horizon_ms).",
                default=False,
            ),
            Param(
                "engine",
                "string",
                "The engine for all sizes: a thread of the broker, a worker process, or Spark. If a Spark job fails, a worker "
                "process takes its place.",
                choices=ENGINES,
            ),
            Param("timeout_ms", "integer", "Stop waiting after this real time; rounds continue.", most=MAX_TIMEOUT_MS),
        ),
        changes_data=True,
        is_job=True,
        can_be_ended=True,
        answer="is_clean, is_reached, horizon_ms, removed. For each of `partitions`: offsets, bytes and records before and "
        "after, removed and kept by reason, rounds, runners, ranges held back.",
    ),
)
