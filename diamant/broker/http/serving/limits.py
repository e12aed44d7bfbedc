"""The limits of the HTTP port."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on connections. A connection carries one request. So that silent or slow peers hold no resources, it is closed
    `timeout_s` after it was accepted. This time is extended while the request waits for a job, and by the time that the request's
    body takes at `min_bytes_per_second`.
    """

    most: int = 64
    """Beyond this number, the oldest connection without a request is closed."""
    most_for_probes: int = 16
    """Additional connections, accepted only for probes when all others have sent a request."""
    timeout_s: float = 10.0
    min_bytes_per_second: int = 256 * 1024
    close_timeout_s: float = 1.0
    accept_retry_s: float = 1.0
    """The pause after a failed accept."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits on jobs. The oldest finished jobs are discarded first. While `most` are in progress, new jobs are refused (429)."""

    most: int = 100
    """The number of jobs kept."""
    result_bytes: int = 16 * 1024 * 1024
    """The total size of all results."""
    waiting: int = 32
    """The number of requests that may wait for jobs at the same time. Others are answered without waiting."""
    keep_result_s: float = 600.0
    """How long a result is kept if no POST has returned it."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """All limits, except those on bodies (`Route.max_body_bytes`)."""

    connections: ConnectionLimits = ConnectionLimits()
    jobs: JobLimits = JobLimits()


DEFAULT_LIMITS = HttpLimits()
