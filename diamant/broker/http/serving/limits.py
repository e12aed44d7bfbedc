"""The limits of the HTTP port."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Each connection has one request. It must end within its time, from the accept to the last byte, so that neither silent nor
    slow peers keep resources. The time grows by the request's wait for a job, and by the time that its body takes at
    `min_bytes_per_second`.
    """

    most: int = 64
    """Beyond that the oldest connection without a request gives way."""
    most_for_probes: int = 16
    """So many more are accepted if all others have sent a request: for probes only."""
    timeout_s: float = 10.0
    min_bytes_per_second: int = 256 * 1024
    close_timeout_s: float = 1.0
    accept_retry_s: float = 1.0
    """The pause after the system has refused to accept."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The oldest jobs that are over are forgotten first. While `most` are in progress no other begins (429)."""

    most: int = 100
    """Jobs that are remembered."""
    result_bytes: int = 16 * 1024 * 1024
    """Of all results together."""
    waiting: int = 32
    """Requests that wait at once; others are answered without waiting."""
    keep_result_s: float = 600.0
    """The time for which a result is kept that answered no POST."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bodies have limits of their own: `Route.max_body_bytes`."""

    connections: ConnectionLimits = ConnectionLimits()
    jobs: JobLimits = JobLimits()


DEFAULT_LIMITS = HttpLimits()
