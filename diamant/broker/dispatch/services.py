"""The services: coordinators and operations of one node, each created on first use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from diamant.broker.dispatch.dispatcher import Dispatcher, Handler
from diamant.broker.dispatch.enforced_quotas import EnforcedQuotas
from diamant.broker.handlers.topics.metadata import MetadataCache
from diamant.broker.network.api import Decode, frame_header
from diamant.broker.network.request_metrics import RequestMetrics
from diamant.broker.network.server import Server
from diamant.broker.network.server_limits import ServerLimits
from diamant.broker.node.cleaner import NodeCleaner
from diamant.broker.node.housekeeping import Housekeeping
from diamant.broker.node.lazy import Lazy, lazily
from diamant.broker.node.node import Node
from diamant.broker.topics.auto_creation import AutoCreation
from diamant.broker.topics.internal_names import (
    GROUP_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    REQUESTS_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from diamant.storage import names

if TYPE_CHECKING:
    from diamant.broker.brokers.ports import BrokerPorts
    from diamant.broker.config.broker_config import BrokerConfig
    from diamant.broker.erasure.certification.certificates import Certificates
    from diamant.broker.erasure.certification.evidence import Evidence
    from diamant.broker.erasure.erase.erasures import Erasures
    from diamant.broker.erasure.jobs.pending_jobs import AnyQueue
    from diamant.broker.erasure.redact.redactions import Redactions
    from diamant.broker.faults.installed_faults import Faults
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.groups.coordinator.tombstone_holds import GroupHolds
    from diamant.broker.operations.broker_state.broker_clock import BrokerClock
    from diamant.broker.operations.broker_state.figure_history import FigureHistory
    from diamant.broker.operations.brokers.brokers import Brokers
    from diamant.broker.operations.compactions.compact_by_config import CompactByConfig
    from diamant.broker.operations.compactions.compactions import Compactions
    from diamant.broker.operations.figures.background_counts import BackgroundCounts
    from diamant.broker.operations.figures.segment_figures import SegmentFigures
    from diamant.broker.operations.records.count_operation import CountOperation
    from diamant.broker.operations.records.explain_operation import ExplainOperation
    from diamant.broker.operations.records.ghosts import Ghosts
    from diamant.broker.operations.records.produce_operation import ProduceOperation
    from diamant.broker.operations.records.records_operation import RecordsOperation
    from diamant.broker.operations.records.search_operation import SearchOperation
    from diamant.broker.person.people import People
    from diamant.broker.security.authorization.audit_log import AuditLog
    from diamant.broker.security.sasl.sasl_listeners import SaslListeners
    from diamant.broker.snapshots.snapshot_store import Snapshots
    from diamant.broker.transactions.coordinator import TransactionCoordinator
    from diamant.cleaner.erasure_state.pending_erasures import PendingErasures
    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.cleaner.rules.tombstone_hold import TombstoneHold
    from diamant.protocol.wire.error_shape import ErrorShape
    from diamant.storage.log.log import Log


def _creations(services: Services) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return the functions that create the internal topics, by topic name.

    They import the coordinators in a thread, since that might block the loop for 0.1 s or more. They create them on the loop.
    """

    async def create_offsets() -> None:
        await asyncio.to_thread(import_module, "diamant.broker.groups.coordinator.coordinator")
        await services.groups().log.topic.ensure()

    async def create_share_state() -> None:
        await asyncio.to_thread(import_module, "diamant.broker.groups.coordinator.coordinator")
        await services.groups().share.delivery.state.topic.ensure()

    async def create_transactions() -> None:
        await asyncio.to_thread(import_module, "diamant.broker.transactions.coordinator")
        await services.transactions().store.topic.ensure()

    return {
        GROUP_OFFSETS_TOPIC: create_offsets,
        SHARE_GROUP_STATE_TOPIC: create_share_state,
        TRANSACTION_STATE_TOPIC: create_transactions,
    }


COORDINATORS_HEAD_START_S = 0.2
"""The maximum time for which a start waits for transactions and groups to load before it accepts clients."""


class Services:
    """The parts of a broker that answer requests, over Kafka's protocol and over HTTP. Belongs to the loop thread."""

    def __init__(
        self,
        node: Node,
        shapes: Mapping[int, ErrorShape],
        load: Callable[[Services, int], tuple[Decode, Handler]],
        server: Server | None = None,
        sasl: SaslListeners | None = None,
        audit: Lazy[AuditLog] | None = None,
    ) -> None:
        """`shapes`: the shape of each API's errors, by API key. `load(services, key)` returns an API's decoder and handler.

        `server`, `audit`: those of previous services, to be reused. `sasl`: None if no listener uses SASL.
        """
        self.node = node
        self.audit: Lazy[AuditLog] = audit or Lazy(self._audit)
        self.housekeeping = Housekeeping(node)
        self.cleaning = NodeCleaner(node, self._hold, self._watch)
        dispatch = Dispatcher(node.flusher, shapes, partial(load, self))
        if server is None:
            server = Server(dispatch, frame_header, ServerLimits.of(node.config), RequestMetrics())
        else:
            server.dispatch = dispatch
            server.set_limits(ServerLimits.of(node.config))
        self.server = server
        self.quotas = EnforcedQuotas(node, server)
        server.on_disconnect = self._disconnected
        server.sasl = sasl
        if sasl is not None:
            from diamant.broker.network.sasl_gate import illegal_sasl_state
            from diamant.broker.security.sasl.usual_iterations import UsualIterations

            metadata = node.metadata
            sasl.find = lambda mechanism, user: metadata.image.scram_credentials.get((mechanism, user))
            sasl.usual_iterations = UsualIterations(
                lambda: metadata.image.scram_credentials.values(), lambda: metadata.end_offset
            ).of
            sasl.now_ms = node.env.clock.now_ms
            sasl.refuse = partial(illegal_sasl_state, shapes)
        node.on_reconfigured.append(self._set_limits)
        self.faults: Lazy[Faults] = Lazy(lambda: self._faults(shapes))
        self.metadata_cache = MetadataCache()
        self.creation = AutoCreation(node.topics, _creations(self))
        self.api_versions: dict[int, bytes] = {}
        """The encoded answers of ApiVersions, by version."""
        self.performed: set[str] = set()
        """The names of the operations whose modules are imported and whose dependencies are created."""
        self.ports: BrokerPorts
        """The listening sockets. Set by `start_broker`."""
        self.reset: Callable[[str, bool], Awaitable[None]]
        """Resets the broker to the snapshot with the given id. The flag keeps connections open. Set by `RunningBroker`."""

    @property
    def jobs(self) -> list[AnyQueue]:
        """The queues of erasures, redactions and persons' requests created so far."""
        return [kind.queue for kind in (self.erasures.made, self.redactions.made, self.people.made) if kind is not None]

    def is_erasing(self) -> bool:
        """Return whether an erasure, a redaction or a person's request is pending."""
        return any(queue.calls or queue.table.due or queue.table.busy for queue in self.jobs)

    # -- erasures and redactions ---------------------------------------------------------------------------------

    async def resume_jobs(self) -> None:
        """Resume the jobs that an earlier run left unfinished."""
        found = self.node.env.list_dir(self.node.config.data_dir)
        ended = (names.CERTIFICATE_SUFFIX, names.REMAINS_SUFFIX)
        for prefix, kind in ((names.ERASURE_PREFIX, self.erasures), (names.REDACTION_PREFIX, self.redactions)):
            if any(name.startswith(prefix) and not name.endswith(ended) for name in found):
                await kind().queue.start()
        if REQUESTS_TOPIC in self.node.topics.by_name:
            await self.people().start()

    async def load_coordinators(self) -> None:
        """Load the existing state of groups and transactions; continue in the background if this takes long."""
        coordinators: list[TransactionCoordinator | GroupCoordinator] = []
        if TRANSACTION_STATE_TOPIC in self.node.topics.by_name:
            coordinators.append(self.transactions())
        if GROUP_OFFSETS_TOPIC in self.node.topics.by_name:
            coordinators.append(self.groups())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COORDINATORS_HEAD_START_S):
                for coordinator in coordinators:
                    await coordinator.loaded()

    async def start(self) -> None:
        """Start the cleaner and all jobs that are scheduled by the clock."""
        try:
            await self.cleaning.start()
        finally:
            self.node.scheduler.start()

    async def stop(self) -> None:
        """End all work in progress and save its state. If a part fails, end the others, then raise its error."""
        async with contextlib.AsyncExitStack() as parts:  # stopped in reverse order
            for part in (self.transactions.made, self.groups.made):
                if part is not None:
                    parts.push_async_callback(part.stop)
            if self.faults.made is not None:
                parts.callback(self.faults.made.close)
            for work in (self.history.made, self.background_counts.made):
                if work is not None:
                    parts.push_async_callback(work.stop)
            if self.compactions.made is not None:
                parts.callback(self.compactions.made.stop)
            # The queue of persons' requests comes last, so it stops first: it waits for erasures and redactions.
            for queue in self.jobs:
                parts.push_async_callback(queue.stop)
            parts.push_async_callback(self.creation.stop)

    # -- parts -----------------------------------------------------------------------------------------------

    def _disconnected(self, peer: str) -> None:
        if self.groups.made is not None:
            self.groups.made.disconnected(peer)

    def _set_limits(self, config: BrokerConfig) -> None:
        self.server.set_limits(ServerLimits.of(config))

    def _audit(self) -> AuditLog:
        from diamant.broker.security.authorization.audit_log import AuditLog

        return AuditLog(self.node.config.diamant_audit_file)

    def _faults(self, shapes: Mapping[int, ErrorShape]) -> Faults:
        from diamant.broker.faults.installed_faults import Faults

        return Faults(self.node, self.server, shapes)

    @lazily
    def groups(self) -> GroupCoordinator:
        from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

        return GroupCoordinator(self.node)

    def _hold(self, log: Log) -> TombstoneHold | None:
        if log.config.diamant_tombstone_hold == "none":
            return None
        return self.holds().hold(log)

    async def _watch(self, log: Log, now_ms: int) -> Callable[[CleanPlan, int], object] | None:
        if GROUP_OFFSETS_TOPIC not in self.node.topics.by_name or log.topic in INTERNAL_TOPICS:
            return None
        return await self.ghosts().watch(log, now_ms)

    @lazily
    def ghosts(self) -> Ghosts:
        from diamant.broker.operations.records.ghosts import Ghosts

        return Ghosts(self.node.topics, self.groups, self.explain(), self.records())

    def _forget_ghost(self, key: bytes) -> None:
        if self.ghosts.made is not None:
            self.ghosts.made.forget_key(key)

    @lazily
    def holds(self) -> GroupHolds:
        from diamant.broker.groups.coordinator.tombstone_holds import GroupHolds

        return GroupHolds(self.groups, self.node.topics, self.node.loop)

    @lazily
    def transactions(self) -> TransactionCoordinator:
        from diamant.broker.transactions.coordinator import TransactionCoordinator

        return TransactionCoordinator(self.node, self.groups)

    @lazily
    def compactions(self) -> Compactions:
        from diamant.broker.operations.compactions.compactions import Compactions

        return Compactions(self.node, self.cleaning, self.transactions)

    @lazily
    def compact_by_config(self) -> CompactByConfig:
        from diamant.broker.operations.compactions.compact_by_config import CompactByConfig

        return CompactByConfig(self.node, self.compactions)

    @lazily
    def explain(self) -> ExplainOperation:
        from diamant.broker.operations.records.explain_operation import ExplainOperation

        return ExplainOperation(self.node, self.cleaning, self.groups, self.transactions, self._pending_erasures)

    @lazily
    def count(self) -> CountOperation:
        from diamant.broker.operations.records.count_operation import CountOperation

        return CountOperation(self.cleaning, self.explain(), self.compactions())

    @lazily
    def produce(self) -> ProduceOperation:
        from diamant.broker.operations.records.produce_operation import ProduceOperation

        return ProduceOperation(self.node, self.creation)

    @lazily
    def records(self) -> RecordsOperation:
        from diamant.broker.operations.records.records_operation import RecordsOperation

        return RecordsOperation(self.explain(), self.node.loop)

    @lazily
    def search(self) -> SearchOperation:
        from diamant.broker.operations.records.search_operation import SearchOperation

        return SearchOperation(self.explain())

    @lazily
    def history(self) -> FigureHistory:
        from diamant.broker.operations.broker_state.figure_history import FigureHistory

        history = FigureHistory(self.node, self.server, self.cleaning, self._superseded_share)
        history.start()
        return history

    @lazily
    def segment_figures(self) -> SegmentFigures:
        from diamant.broker.operations.figures.segment_figures import SegmentFigures

        return SegmentFigures(self.explain())

    @lazily
    def background_counts(self) -> BackgroundCounts:
        from diamant.broker.operations.figures.background_counts import BackgroundCounts

        return BackgroundCounts(self.segment_figures())

    def _superseded_share(self, topic: str | None) -> float | None:
        """Return the share of superseded records for `FigureHistory`; for the whole broker (None), in the counted partitions."""
        figures = self.segment_figures.made
        if figures is None:  # nothing was counted, and the history alone does not justify the imports
            return None
        known = self.node.topics.by_name.get(topic) if topic is not None else None
        share = figures.share_known() if topic is None else figures.share([] if known is None else known.logs.values())
        return share.ratio

    @lazily
    def clock(self) -> BrokerClock:
        from diamant.broker.operations.broker_state.broker_clock import BrokerClock

        return BrokerClock(self.node, self.cleaning, self.groups, self.transactions, lambda: self.jobs)

    @lazily
    def brokers(self) -> Brokers:
        from diamant.broker.operations.brokers.brokers import Brokers

        return Brokers(self.node, self.ports, self.faults, self.housekeeping, self.is_erasing)

    @lazily
    def snapshots(self) -> Snapshots:
        from diamant.broker.snapshots.snapshot_store import Snapshots

        return Snapshots(self.node, self.is_erasing)

    @lazily
    def evidence(self) -> Evidence:
        from diamant.broker.erasure.certification.evidence import Evidence

        return Evidence(self.node, self.groups)

    @lazily
    def certificates(self) -> Certificates:
        from diamant.broker.erasure.certification.certificates import Certificates

        return Certificates(self.evidence())

    @lazily
    def erasures(self) -> Erasures:
        from diamant.broker.erasure.erase.erasures import Erasures

        return Erasures(
            self.node,
            self.evidence(),
            self.certificates(),
            self.cleaning,
            self.compactions(),
            self.groups,
            self._forget_ghost,
        )

    @lazily
    def redactions(self) -> Redactions:
        from diamant.broker.erasure.redact.redactions import Redactions

        return Redactions(self.node, self.evidence(), self.cleaning, self.erasures().queue.attempts.lock)

    @lazily
    def people(self) -> People:
        from diamant.broker.person.people import People

        jobs = self.erasures(), self.redactions()
        return People(self.node, self.evidence(), self.certificates(), *jobs, self.explain(), self.groups)

    def _pending_erasures(self, topic: str) -> PendingErasures | None:
        return None if self.erasures.made is None else self.erasures.made.pending(topic)
