"""The figures that several metrics share. The loop thread collects them for each scrape; any thread may read them.

Authentications are counted for each listener. A PLAINTEXT listener shows zeros, as in Kafka. A listener with TLS and SASL counts
successful SASL authentications, and failures of both TLS and SASL.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from diamant.broker.config.listeners import SASL_PROTOCOLS, Listener
from diamant.broker.groups.coordinator.share_figures import SharePartitionFigures, share_figures
from diamant.broker.metrics.coordinators import (
    MAX_LAGS,
    GroupFigures,
    Lag,
    TransactionFigures,
    take_groups,
    take_transactions,
)
from diamant.broker.metrics.erasure_deadline import TopicDeadline, take_deadlines
from diamant.broker.network.request_metrics import RequestMetrics
from diamant.broker.security.identity.authentication_counts import AuthenticationCounts
from diamant.cleaner.service.metrics import CleanerStatus, PartitionStatus, RoundStatus
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire import apis

if TYPE_CHECKING:
    from diamant.broker.dispatch.services import Services
    from diamant.broker.node.node import Node
    from diamant.broker.node.topic_metrics import TopicCounts
    from diamant.broker.security.quotas.client_counts import ClientCount
    from diamant.broker.security.quotas.quotas import Quotas
    from diamant.broker.security.sasl.sasl_listeners import SaslListeners
    from diamant.broker.security.tls.tls_listeners import TlsListeners

Labels: TypeAlias = tuple[str, ...]
"""The values of a sample's labels."""

LOGS_PER_TURN = 256
FETCH, FETCH_CONSUMER = "Fetch", "FetchConsumer"


MAX_COUNTS_SHOWN = 1000

M = TypeVar("M")


class QuotaFigure(NamedTuple):
    """The figures of the clients that share one count for a quota."""

    labels: tuple[str, ...]
    """Kafka's type of the quota, and the user and the client ID to which the count applies."""
    throttle_time_ms: float
    byte_rate: float | None = None
    request_time: float | None = None
    tokens: float | None = None


def take_quotas(quotas: Quotas | None) -> tuple[QuotaFigure, ...]:
    """Return the figures of the `MAX_COUNTS_SHOWN` most recently used counts for each type of quota; empty if there are none."""
    if quotas is None:
        return ()
    now_ms = quotas.now_s() * 1000

    def figure(kind: str, count: ClientCount[M]) -> QuotaFigure:
        return QuotaFigure((kind, *count.shared), count.throttle_time_ms(now_ms))

    return (
        *(figure("Produce", c)._replace(byte_rate=c.meter.per_second(now_ms)) for c in _latest(quotas.produce.counts)),
        *(figure("Fetch", c)._replace(byte_rate=c.meter.per_second(now_ms)) for c in _latest(quotas.fetch.counts)),
        *(
            figure("Request", c)._replace(request_time=c.meter.per_second(now_ms))
            for c in _latest(quotas.request.counts)
        ),
        *(
            figure("ControllerMutation", c)._replace(tokens=c.meter.tokens(c.limit, now_ms))
            for c in _latest(quotas.mutations.counts)
        ),
    )


def _latest(counts: Iterable[ClientCount[M]]) -> list[ClientCount[M]]:
    return heapq.nlargest(MAX_COUNTS_SHOWN, counts, key=lambda count: count.last_used_ms)


def offline_partitions(node: Node) -> int:
    """Return the number of partitions that could not be opened or can no longer be written to."""
    topics = node.topics.image.topics
    failed = sum(failure.topic in topics for failure in node.directory.failures)
    return failed + sum(log.write_failure is not None for log in node.directory.logs.values())


class LogFigures(NamedTuple):
    """The figures of a partition's log."""

    topic: str
    partition: int
    size: int
    segment_count: int
    log_start_offset: int
    log_end_offset: int


class RequestFigures(NamedTuple):
    """The figures of one API version. `buckets`: responses by latency; the last bucket has no upper bound."""

    version: int
    buckets: tuple[int, ...]
    total_ms: float
    errors: tuple[tuple[str, int], ...]


class TopicTraffic(NamedTuple):
    """The traffic of a topic."""

    messages_in: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True)
class Figures:
    """The figures of one scrape."""

    directory: str
    """The log directory, as it appears in a label."""
    topics: dict[Labels, TopicTraffic]
    """The traffic of each topic, and, under the empty labels, of all topics together."""
    logs: tuple[LogFigures, ...]
    cleaner: CleanerStatus | None
    deadlines: tuple[TopicDeadline, ...]
    requests: dict[str, list[RequestFigures]]
    """The requests by API. As in Kafka, a consumer's fetch counts both as FetchConsumer and as Fetch."""
    partition_errors: tuple[tuple[tuple[str, str], int], ...]
    """The errors of Produce and Fetch, by (API, error)."""
    groups: GroupFigures | None
    transactions: TransactionFigures | None
    authentications: Authentications
    quotas: tuple[QuotaFigure, ...]
    share_partitions: tuple[SharePartitionFigures, ...]

    @cached_property
    def labelled_logs(self) -> list[tuple[Labels, LogFigures]]:
        """The logs with their labels."""
        return [((log.topic, str(log.partition)), log) for log in self.logs]

    @property
    def of_cleaner(self) -> list[tuple[Labels, CleanerStatus]]:
        """The cleaner's status with empty labels; no item if the cleaner is off."""
        return [] if self.cleaner is None else [((), self.cleaner)]

    @cached_property
    def cleaned(self) -> list[tuple[Labels, PartitionStatus]]:
        """The status of each partition that the cleaner knows, with its labels."""
        return [
            ((partition.topic, str(partition.partition)), partition)
            for _, cleaner in self.of_cleaner
            for partition in cleaner.partitions
        ]

    @property
    def rounds(self) -> list[tuple[Labels, RoundStatus]]:
        """The rounds in progress with their labels."""
        return [
            ((status.topic, str(status.partition), status.runner), status)
            for _, cleaner in self.of_cleaner
            for status in cleaner.in_progress
        ]

    @property
    def of_groups(self) -> list[tuple[Labels, GroupFigures]]:
        """The figures of all groups with empty labels; no item if there is no coordinator."""
        return [] if self.groups is None else [((), self.groups)]

    @cached_property
    def lags(self) -> list[tuple[Labels, Lag]]:
        """The lags of groups with their labels."""
        return [
            ((lag.group_id, lag.topic, str(lag.partition)), lag) for _, groups in self.of_groups for lag in groups.lags
        ]


async def take_figures(services: Services) -> Figures:
    """Collect the figures on the loop thread. Yields to other tasks."""
    node, server = services.node, services.server
    logs = []
    for count, log in enumerate(list(node.directory.logs.values()), start=1):
        logs.append(
            LogFigures(log.topic, log.partition, log.size, len(log.segments), log.log_start_offset, log.log_end_offset)
        )
        if count % LOGS_PER_TURN == 0:
            await asyncio.sleep(0)
    counts = node.topic_metrics
    topics: dict[Labels, TopicTraffic] = {(): _traffic(counts.all_topics())}
    topics.update({(name,): _traffic(topic) for name, topic in sorted(counts.by_topic().items())})
    return Figures(
        directory=printable(node.config.data_dir),
        topics=topics,
        logs=tuple(sorted(logs)),
        cleaner=services.cleaning.status() if node.config.log_cleaner_enable else None,
        deadlines=tuple(await take_deadlines(node, services.cleaning, services.groups)),
        requests=_requests(server.metrics),
        partition_errors=tuple(
            ((apis.API_NAMES[key], _error_name(code)), count) for (key, code), count in sorted(counts.errors.items())
        ),
        groups=await take_groups(services.groups.made, node.topics),
        transactions=take_transactions(services.transactions.made, node.env.clock),
        authentications=take_authentications(node.config.listeners, node.tls, server.sasl),
        quotas=take_quotas(services.quotas.clients.made),
        share_partitions=tuple(share_figures(services.groups.made, node.topics, MAX_LAGS)),
    )


def _traffic(counts: TopicCounts) -> TopicTraffic:
    return TopicTraffic(counts.messages_in, counts.bytes_in, counts.bytes_out)


def _requests(counted: RequestMetrics) -> dict[str, list[RequestFigures]]:
    found: dict[str, list[RequestFigures]] = {}
    for row in counted.rows():
        errors = tuple((_error_name(code), count) for code, count in sorted(row.errors.items()))
        figures = RequestFigures(row.version, tuple(row.buckets), row.total_s * 1000, errors)
        found.setdefault(apis.API_NAMES.get(row.api_key, str(row.api_key)), []).append(figures)
    if FETCH in found:
        found[FETCH_CONSUMER] = found[FETCH]
    return found


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def printable(text: str) -> str:
    """Escape bytes that are not valid text: a path may contain them, but a label may not."""
    return text.encode("utf-8", "backslashreplace").decode()


Authentications: TypeAlias = tuple[tuple[tuple[str, str], AuthenticationCounts], ...]
"""The labels of each listener, with its counts."""

NETWORK_PROCESSOR = "0"
"""The label of the network thread. Kafka has several such threads, Diamant has one."""


def take_authentications(
    listeners: Iterable[Listener], tls: TlsListeners | None, sasl: SaslListeners | None
) -> Authentications:
    """Return the counts of all listeners."""
    found = []
    for listener in listeners:
        by_tls = None if tls is None else tls.by_name.get(listener.name)
        counts = AuthenticationCounts() if by_tls is None else replace(by_tls.counts)
        if sasl is not None and listener.security_protocol in SASL_PROTOCOLS:
            failed_handshakes = counts.failed
            counts = replace(sasl.counts[listener.name])
            counts.failed += failed_handshakes
        found.append(((listener.name, NETWORK_PROCESSOR), counts))
    return tuple(found)
