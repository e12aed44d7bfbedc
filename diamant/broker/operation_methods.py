"""The operations as methods of `Broker` and `BlockingBroker`. Made by `make docs` from `dispatch/operation_table.py`.

The request of an operation (such as `CompactRequest`) says what the arguments mean.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from diamant.broker.operations.calls.cross_loop import waiting
from diamant.broker.perform import AnyBroker, perform

if TYPE_CHECKING:
    from diamant.broker.erasure.erase.erase_result import Erasure
    from diamant.broker.erasure.jobs.removal import RemovalResult
    from diamant.broker.erasure.redact.redact_result import Redaction
    from diamant.broker.operations.broker_state.broker_status import BrokerStatus
    from diamant.broker.operations.brokers.broker_reports import BrokersReport, LeaderReport, OneBroker, UncleanReport
    from diamant.broker.operations.records.count_operation import TopicRecords
    from diamant.broker.operations.records.explain_operation import Explanation
    from diamant.broker.operations.records.ghosts import GhostReport
    from diamant.broker.operations.records.reset_offsets import ResetOffsets
    from diamant.broker.person.person_steps import Forgotten, ForgottenPeople
    from diamant.broker.person.planning import Plan, Plans
    from diamant.broker.person.register import PersonRequest
    from diamant.broker.person.sampling import MapCheck
    from diamant.broker.snapshots.snapshot_store import BrokerSnapshot
    from diamant.cleaner.evidence.certificates.verification import Verification
    from diamant.cleaner.on_demand.report import CompactionReport
    from diamant.cleaner.person.suggestion import Suggestion
    from diamant.duration import Duration
    from diamant.progress import Progress


class Operations:
    """The awaited operations of a broker."""

    async def compact(
        self: AnyBroker,
        topic: str,
        partition: int | None = None,
        *,
        until: Literal["clean", "tombstones-gone"] = "clean",
        force: bool = False,
        wait: bool = True,
        engine: Literal["inline", "process", "spark"] | None = None,
        timeout: Duration | None = None,
        progress: Progress | None = None,
    ) -> CompactionReport:
        """Compact a topic now and wait until it is clean. See `CompactRequest`."""
        return await perform(self, "compact", locals())

    async def roll(self: AnyBroker, topic: str, partition: int | None = None) -> Mapping[str, Any]:
        """Close the active segments of a topic. See `RollRequest`."""
        return await perform(self, "roll", locals())

    async def count(
        self: AnyBroker,
        topic: str,
        partition: int | None = None,
        *,
        exact: bool | None = None,
        progress: Progress | None = None,
    ) -> TopicRecords:
        """Count the records of a topic, by kind. See `CountRequest`."""
        return await perform(self, "count", locals())

    async def explain(
        self: AnyBroker,
        topic: str,
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        offset: int | None = None,
        tombstones: bool = False,
        progress: Progress | None = None,
    ) -> Explanation:
        """Explain why records are still stored, and until when. See `ExplainRequest`."""
        return await perform(self, "explain", locals())

    async def ghosts(self: AnyBroker, topic: str, group: str | None = None) -> GhostReport:
        """List deleted keys that consumer groups may still hold. See `GhostsRequest`."""
        return await perform(self, "ghosts", locals())

    async def erase(
        self: AnyBroker,
        key: bytes | str,
        topics: str | Sequence[str],
        *,
        reason: str,
        reference: str = "",
        now: bool = False,
        confirm_groups_behind: bool = False,
        force: bool = False,
        engine: Literal["inline", "process", "spark"] | None = None,
        timeout: Duration | None = None,
        progress: Progress | None = None,
    ) -> Erasure:
        """Erase a key from topics and certify the removal. See `EraseRequest`."""
        return await perform(self, "erase", locals())

    async def erase_now(
        self: AnyBroker,
        id: str,
        *,
        confirm_groups_behind: bool = False,
        timeout: Duration | None = None,
        progress: Progress | None = None,
    ) -> Erasure:
        """Remove the tombstones of an erasure before their horizon. See `EraseNowRequest`."""
        return await perform(self, "erase_now", locals())

    async def redact(
        self: AnyBroker,
        topic: str,
        where: str,
        *,
        reason: str,
        reference: str = "",
        blank: str | Sequence[str] = (),
        blank_with: str = "null",
        set: str | Sequence[str] = (),
        yes_all: bool = False,
        undecided: Literal["hold", "remove", "keep"] = "hold",
        registry: str | None = None,
        timeout: Duration | None = None,
        progress: Progress | None = None,
    ) -> Redaction:
        """Remove matching records from a topic and certify it. See `RedactRequest`."""
        return await perform(self, "redact", locals())

    async def cancel(self: AnyBroker, id: str, *, reason: str, progress: Progress | None = None) -> RemovalResult:
        """Cancel a pending erasure or redaction. See `CancelRequest`."""
        return await perform(self, "cancel", locals())

    async def certificates(self: AnyBroker) -> Mapping[str, Any]:
        """List the certificates of a broker, or fetch one."""
        return await perform(self, "certificates", locals())

    async def certificate(self: AnyBroker, id: str, *, as_it_is: bool = False) -> Mapping[str, Any]:
        """Return the last certificate of an erasure or redaction. See `CertificateRequest`."""
        return await perform(self, "certificate", locals())

    async def verify(
        self: AnyBroker,
        certificate: Mapping[str, Any],
        *,
        public_key: str | None = None,
        key: bytes | str | None = None,
        where: str | None = None,
        set: str | Sequence[str] = (),
        identifiers: Mapping[str, Any] | None = None,
        registry: str | None = None,
        progress: Progress | None = None,
    ) -> Verification:
        """Check a certificate of an erasure or redaction. See `VerifyRequest`."""
        return await perform(self, "verify", locals())

    async def segments(
        self: AnyBroker,
        topic: str,
        partition: int | None = None,
        *,
        all: bool = False,
        progress: Progress | None = None,
    ) -> Mapping[str, Any]:
        """Count the records of each segment of a topic, by kind. See `SegmentsRequest`."""
        return await perform(self, "segments", locals())

    async def reset_offsets(
        self: AnyBroker, group: str, topic: str, to: str, partition: int | None = None, *, validate_only: bool = False
    ) -> ResetOffsets:
        """Reset the committed offsets of a group without members, in a topic. See `ResetOffsetsRequest`."""
        return await perform(self, "reset_offsets", locals())

    async def alter_configs(
        self: AnyBroker, topic: str, set: Mapping[str, Any], *, validate_only: bool = False
    ) -> Mapping[str, Any]:
        """Change configurations of a topic, all or none. See `AlterConfigsRequest`."""
        return await perform(self, "alter_configs", locals())

    async def status(self: AnyBroker) -> BrokerStatus:
        """Show the state of a broker and its cleaner."""
        return await perform(self, "status", locals())

    async def history(self: AnyBroker, topic: str | None = None, *, since_ms: int = 0) -> Mapping[str, Any]:
        """Show figures of the last 24 hours, taken every 30 seconds. See `HistoryRequest`."""
        return await perform(self, "history", locals())

    async def snapshot(self: AnyBroker) -> BrokerSnapshot:
        """Save the current state of the broker, for later resets."""
        return await perform(self, "snapshot", locals())

    async def snapshots(self: AnyBroker) -> Mapping[str, Any]:
        """List all snapshots with their sizes, oldest first."""
        return await perform(self, "snapshots", locals())

    async def delete_snapshot(self: AnyBroker, id: str) -> Mapping[str, Any]:
        """Delete a snapshot. See `SnapshotRequest`."""
        return await perform(self, "delete_snapshot", locals())


class BlockingOperations:
    """The same operations, each of which waits for its end."""

    compact = waiting(Operations.compact)
    roll = waiting(Operations.roll)
    count = waiting(Operations.count)
    explain = waiting(Operations.explain)
    ghosts = waiting(Operations.ghosts)
    erase = waiting(Operations.erase)
    erase_now = waiting(Operations.erase_now)
    redact = waiting(Operations.redact)
    cancel = waiting(Operations.cancel)
    certificates = waiting(Operations.certificates)
    certificate = waiting(Operations.certificate)
    verify = waiting(Operations.verify)
    segments = waiting(Operations.segments)
    reset_offsets = waiting(Operations.reset_offsets)
    alter_configs = waiting(Operations.alter_configs)
    status = waiting(Operations.status)
    history = waiting(Operations.history)
    snapshot = waiting(Operations.snapshot)
    snapshots = waiting(Operations.snapshots)
    delete_snapshot = waiting(Operations.delete_snapshot)


class PersonOperations:
    """The awaited operations of `broker.person`."""

    def __init__(self, of: AnyBroker) -> None:
        self.of = of

    async def suggest(
        self,
        topics: str | Sequence[str] = (),
        *,
        records: int = 1000,
        registry: str | None = None,
        progress: Progress | None = None,
    ) -> Suggestion:
        """Suggest a map of people, from samples of the topics. See `SuggestPeopleMapRequest`."""
        return await perform(self.of, "person.suggest", locals())

    async def check(
        self,
        map: Mapping[str, Any],
        *,
        records: int = 1000,
        registry: str | None = None,
        progress: Progress | None = None,
    ) -> MapCheck:
        """Check a map of people against the topics. See `CheckPeopleMapRequest`."""
        return await perform(self.of, "person.check", locals())

    async def preview(
        self,
        identifiers: Mapping[str, Any],
        map: Mapping[str, Any],
        *,
        confirm: bool = False,
        registry: str | None = None,
        progress: Progress | None = None,
    ) -> Plan:
        """Show what forgetting a person would do, topic by topic. See `PreviewRequest`."""
        return await perform(self.of, "person.preview", locals())

    async def forget(
        self,
        identifiers: Mapping[str, Any],
        map: Mapping[str, Any],
        *,
        reason: str,
        reference: str = "",
        received: str = "",
        now: bool = False,
        confirm_groups_behind: bool = False,
        confirm: bool = False,
        registry: str | None = None,
        timeout: Duration | None = None,
        progress: Progress | None = None,
    ) -> Forgotten:
        """Forget a person in all topics of a data map, and certify it. See `ForgetRequest`."""
        return await perform(self.of, "person.forget", locals())

    async def preview_each(
        self,
        subjects: Sequence[Mapping[str, Any]],
        map: Mapping[str, Any],
        *,
        confirm: bool = False,
        registry: str | None = None,
        progress: Progress | None = None,
    ) -> Plans:
        """Show what forgetting several people would do. See `PreviewEachRequest`."""
        return await perform(self.of, "person.preview_each", locals())

    async def forget_each(
        self,
        subjects: Sequence[Mapping[str, Any]],
        map: Mapping[str, Any],
        *,
        reason: str,
        reference: str = "",
        received: str = "",
        now: bool = False,
        confirm_groups_behind: bool = False,
        confirm: bool = False,
        registry: str | None = None,
        timeout: Duration | None = None,
        progress: Progress | None = None,
    ) -> ForgottenPeople:
        """Forget several people in one job, and certify each on a paper of its own. See `ForgetEachRequest`."""
        return await perform(self.of, "person.forget_each", locals())

    async def requests(self, open: bool = False) -> Mapping[str, Any]:
        """List persons' requests, the next due first. See `RequestsRequest`."""
        return await perform(self.of, "person.requests", locals())

    async def receive(
        self,
        identifiers: Mapping[str, Any],
        *,
        kind: Literal["forget", "show", "correct"] = "forget",
        reference: str = "",
        received: str = "",
    ) -> PersonRequest:
        """Register a person's request. See `ReceiveRequest`."""
        return await perform(self.of, "person.receive", locals())

    async def extend(self, id: str, *, reason: str, months: int = 2) -> PersonRequest:
        """Extend the due date of a person's request, with a reason. See `ExtendRequest`."""
        return await perform(self.of, "person.extend", locals())

    async def close(self, id: str, *, reason: str, progress: Progress | None = None) -> PersonRequest:
        """Close a person's request, with a reason; a request in progress is cancelled. See `CloseRequest`."""
        return await perform(self.of, "person.close", locals())


class BlockingPersonOperations:
    """The same operations, each of which waits for its end."""

    def __init__(self, awaited: PersonOperations, loop: AbstractEventLoop) -> None:
        self.awaited = awaited
        self.loop = loop

    suggest = waiting(PersonOperations.suggest)
    check = waiting(PersonOperations.check)
    preview = waiting(PersonOperations.preview)
    forget = waiting(PersonOperations.forget)
    preview_each = waiting(PersonOperations.preview_each)
    forget_each = waiting(PersonOperations.forget_each)
    requests = waiting(PersonOperations.requests)
    receive = waiting(PersonOperations.receive)
    extend = waiting(PersonOperations.extend)
    close = waiting(PersonOperations.close)


class BrokersOperations:
    """The awaited operations of `broker.brokers`."""

    def __init__(self, of: AnyBroker) -> None:
        self.of = of

    async def list(self) -> BrokersReport:
        """List the brokers of the process, with their state."""
        return await perform(self.of, "brokers.list", locals())

    async def down(self, broker: int, *, hard: bool = False) -> LeaderReport:
        """Take a broker down: its leaders move, and its clients are cut off. See `DownRequest`."""
        return await perform(self.of, "brokers.down", locals())

    async def up(self, broker: int, *, lag: Duration = 0) -> LeaderReport:
        """Bring a broker back, in sync immediately or later. See `UpRequest`."""
        return await perform(self.of, "brokers.up", locals())

    async def fence(self, broker: int) -> LeaderReport:
        """Take a broker out of the cluster; it still answers. See `FenceRequest`."""
        return await perform(self.of, "brokers.fence", locals())

    async def move(self, topic: str, partition: int, broker: int) -> LeaderReport:
        """Make an in-sync replica the leader of a partition. See `MoveRequest`."""
        return await perform(self.of, "brokers.move", locals())

    async def shuffle(self, topic: str | None = None, *, seed: int | None = None) -> LeaderReport:
        """Move leaders to other in-sync replicas, at random. See `ShuffleRequest`."""
        return await perform(self.of, "brokers.shuffle", locals())

    async def unclean(self, topic: str, partition: int, broker: int, offset: int) -> UncleanReport:
        """Make a replica the leader although it lacks the newest records, which are lost. See `UncleanRequest`."""
        return await perform(self.of, "brokers.unclean", locals())

    async def lag(self, broker: int, by: Any) -> OneBroker:
        """Let a broker lag in the partitions that it follows. See `LagRequest`."""
        return await perform(self.of, "brokers.lag", locals())

    async def slow(self, broker: int, by: Duration) -> OneBroker:
        """Delay each request to a broker. See `SlowRequest`."""
        return await perform(self.of, "brokers.slow", locals())


class BlockingBrokersOperations:
    """The same operations, each of which waits for its end."""

    def __init__(self, awaited: BrokersOperations, loop: AbstractEventLoop) -> None:
        self.awaited = awaited
        self.loop = loop

    list = waiting(BrokersOperations.list)
    down = waiting(BrokersOperations.down)
    up = waiting(BrokersOperations.up)
    fence = waiting(BrokersOperations.fence)
    move = waiting(BrokersOperations.move)
    shuffle = waiting(BrokersOperations.shuffle)
    unclean = waiting(BrokersOperations.unclean)
    lag = waiting(BrokersOperations.lag)
    slow = waiting(BrokersOperations.slow)
