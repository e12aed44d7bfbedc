"""Runs classic groups: connects their events with timers, the log and parked requests.

A parked request (JoinGroup, SyncGroup) is an asyncio future, which is cancelled when its connection closes. As in Kafka, this
does not affect the group: the member stays until its session or the rebalance ends.

Every event completes in one turn of the loop: decide, append the record, change memory, answer. So answered changes survive
SIGKILL, and memory always matches the log.

Classic members of consumer groups are served by `ClassicMembers`.

Bound: the members of all groups, with one timer and at most one parked request each.

Source: GroupMetadataManager, GroupCoordinatorService (joinGroup, syncGroup, heartbeat, leaveGroup).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from diamant.broker.groups.classic import events, joining, leaving, rebalance, syncing
from diamant.broker.groups.classic.classic_group import ClassicGroup, GroupState
from diamant.broker.groups.classic.turn import ClassicGroupLimits, GroupTurn
from diamant.broker.groups.membership.timers import Timers
from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.group_store import GroupStore
from diamant.broker.groups.store.log import GroupLog
from diamant.broker.network.api import REQUEST_ERRORS, CloseConnection, error_of
from diamant.broker.node.flusher import check_synced
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.group_records import GroupMetadataKey, GroupMetadataValue, encode_record
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.groups.membership.classic_members import ClassicMembers
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer", bound=events.JoinAnswer | events.SyncAnswer)


_WITH_MEMBER_ID = frozenset(
    {ErrorCode.INVALID_GROUP_ID, ErrorCode.INVALID_SESSION_TIMEOUT, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)
"""Errors that refuse JoinGroup before the group is looked up. As in Kafka, answers to errors raised later omit the member id."""


class Waiter(Generic[_Answer]):
    """A request that may be parked. The result of `future` is the answer encoded by `encode`."""

    __slots__ = ("encode", "future")

    def __init__(self, encode: Callable[[_Answer], bytes]) -> None:
        self.encode = encode
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def answer(self, answer: _Answer) -> None:
        """Answer the request; no effect if its connection is closed."""
        if self.future.done():
            return
        try:
            self.future.set_result(self.encode(answer))
        except Exception as error:
            # If an answer cannot be encoded (a leader's, with too much metadata), the other answers must not be affected. The
            # exception has the same effect as one in a handler, for this connection only.
            self.future.set_exception(error)

    def answer_when_synced(self, answer: _Answer, log: Log, flush: asyncio.Future[None]) -> None:
        """Like `answer`, but wait for `flush`, a flush of the group's log. If it fails, close the connection instead."""
        flush.add_done_callback(lambda _: self._answer_if_synced(answer, log))

    def _answer_if_synced(self, answer: _Answer, log: Log) -> None:
        try:
            check_synced((log,))
        except CloseConnection as error:
            if not self.future.done():
                self.future.set_exception(error)
            return
        self.answer(answer)


class ClassicGroups:
    """All classic groups of the broker. Belongs to the loop thread, which must create it."""

    def __init__(self, node: Node, store: GroupStore, log: GroupLog, members: Callable[[], ClassicMembers]) -> None:
        """`members()` returns the service of classic members in consumer groups."""
        self._node = node
        self._store = store
        self._log = log
        self._classic_members = members
        self.timers = Timers(asyncio.get_running_loop())

    # -- requests ------------------------------------------------------------------------------------------------------

    def join(
        self, group_id: str, request: events.JoinRequest, encode: Callable[[events.JoinAnswer], bytes]
    ) -> bytes | asyncio.Future[bytes]:
        """Handle JoinGroup; return the encoded answer, or a future if the answer comes later."""
        waiter = Waiter(encode)
        try:
            self._check_join(group_id, request)
            group = self._group_to_join(group_id, request)
            if group is None:
                return encode(events.JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            if group.consumer is not None:
                return encode(self._classic_members().join(group, request))
            classic = group.classic
            if classic is None:
                classic = ClassicGroup(group_id, self._now_ms())
                self._store.become(group, classic=classic)
            turn = self._turn(classic)
            joining.join(turn, request, waiter)
            answered = self._run(turn)
        except REQUEST_ERRORS as error:
            code = _answer_code(error)
            return encode(
                events.JoinAnswer(code, request.member_id if code in _WITH_MEMBER_ID else events.UNKNOWN_MEMBER_ID)
            )
        return _result(waiter.future, answered)

    def sync(
        self, group_id: str, request: events.SyncRequest, encode: Callable[[events.SyncAnswer], bytes]
    ) -> bytes | asyncio.Future[bytes]:
        """Handle SyncGroup; return the encoded answer, or a future if the answer comes later."""
        waiter = Waiter(encode)
        try:
            self._store.check_usable(group_id)
            group = self._store.group(group_id)
            if group is not None and group.consumer is not None and not group.consumer.is_empty:
                return encode(self._classic_members().sync(group, request))
            if group is None or group.classic is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no classic group {group_id}")
            turn = self._turn(group.classic)
            syncing.sync(turn, request, waiter)
            answered = self._run(turn)
        except REQUEST_ERRORS as error:
            return encode(events.SyncAnswer(_answer_code(error)))
        return _result(waiter.future, answered)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
        """Handle Heartbeat; return the error code for the answer. The cost does not depend on the size of the group."""
        try:
            self._store.check_usable(group_id)
            group = self._store.group(group_id)
            if group is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if group.classic is None:
                if group.consumer is None:
                    return ErrorCode.UNKNOWN_MEMBER_ID
                return self._classic_members().heartbeat(group, member_id, instance_id, generation_id)
        except REQUEST_ERRORS as error:
            code = _answer_code(error)
            # Until the group is loaded, the member cannot be checked, but an error would make it leave.
            return ErrorCode.NONE if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else code
        code = leaving.heartbeat(group.classic, member_id, instance_id, generation_id)
        if code in leaving.ALIVE:
            self.seen(group.classic, member_id)
        return code

    def leave(self, group_id: str, leavers: Sequence[events.Leaver]) -> list[events.LeaveResult]:
        """Handle LeaveGroup; return a result for each member. Raises KafkaError if the whole request is refused."""
        self._store.check_usable(group_id)
        group = self._store.group(group_id)
        if group is not None and group.consumer is not None:
            return self._classic_members().leave(group, leavers)
        if group is None or group.classic is None:
            return [events.LeaveResult(*leaver, ErrorCode.UNKNOWN_MEMBER_ID) for leaver in leavers]
        if group.classic.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group_id} is being removed")
        turn = self._turn(group.classic)
        results = leaving.leave(turn, leavers)
        self._run(turn)
        return results

    def seen(self, classic: ClassicGroup, member_id: str) -> None:
        """Restart the session of a member after a heartbeat or a commit."""
        member = classic.members.get(member_id)
        if member is not None:
            self._set_timer(classic, events.TimerKind.SESSION, member_id, member.session_timeout_ms)

    # -- beginning and end of groups -----------------------------------------------------------------------------------

    def restore(self, group: Group, value: GroupMetadataValue) -> None:
        """Restore a group from its last record when its partition is loaded, and start a new session for every member.

        Source: GroupMetadataManager.replay(GroupMetadataKey, ...), onLoaded.
        """
        classic = ClassicGroup.from_value(group.group_id, value)
        self._store.become(group, classic=classic)

    def begin(self, classic: ClassicGroup) -> None:
        """Start the sessions of the members of a restored or converted group (called by `GroupCoordinator.become`)."""
        turn = self._turn(classic)
        leaving.start_sessions(turn)
        if len(classic.members) > turn.limits.max_size:
            # The maximum was lowered. A rebalance lets consumers commit offsets before some of them are removed.
            rebalance.rebalance(turn)
        self._run(turn)

    def rebalance(self, classic: ClassicGroup) -> None:
        """Make the members rejoin."""
        turn = self._turn(classic)
        rebalance.rebalance(turn)
        self._run(turn)

    def release(self, classic: ClassicGroup, error: ErrorCode) -> None:
        """Drop a group's members: answer parked requests with `error` and stop timers (called by `GroupCoordinator.become`)."""
        turn = self._turn(classic)
        leaving.dissolve(turn, error)
        self._run(turn)

    def coordinator_moved(self, classic: ClassicGroup) -> None:
        """Answer a group's parked requests, because another broker of this process now coordinates the group."""
        turn = self._turn(classic)
        leaving.coordinator_moved(turn)
        self._run(turn)

    def stop(self, groups: Iterable[Group]) -> None:
        """Stop all timers, and answer all parked requests, so that clients look for the coordinator again."""
        for group in groups:
            if group.classic is not None and group.classic.state is not GroupState.DEAD:
                self.release(group.classic, ErrorCode.NOT_COORDINATOR)
        self.timers.close()

    def count_by_state(self) -> Counter[GroupState]:
        """Return the number of classic groups in each state."""
        return Counter(group.classic.state for group in self._store.groups.values() if group.classic is not None)

    # -- parts of a join -----------------------------------------------------------------------------------------------

    def _check_join(self, group_id: str, request: events.JoinRequest) -> None:
        config = self._node.config
        if group_id and not (
            config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms
        ):
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT, f"session timeout {request.session_timeout_ms} ms")
        self._store.check_usable(group_id)

    def _group_to_join(self, group_id: str, request: events.JoinRequest) -> Group | None:
        """Return the group. If it is missing, create it for a new member, and return None for any other.

        An empty consumer or streams group counts as missing: it is deleted, even if the member is then refused.
        """
        group = self._store.group(group_id)
        is_new_member = request.member_id == events.UNKNOWN_MEMBER_ID
        if group is not None and group.share is not None:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"group {group_id} is a share group")
        if group is not None and group.other is not None:
            group.other.check_join(group_id)
        elif group is not None and (group.consumer is None or not group.consumer.is_empty):
            return group
        if not is_new_member:
            if group is not None:
                self._log.append(group_id, group.tombstones())
                self._store.become(group)
                self._store.forget(group_id)
            return None
        records = []
        if group is not None:
            records += group.tombstones()
        # The group has no members yet, but must exist after a restart.
        value = GroupMetadataValue("", 0, None, None, self._now_ms())
        records.append(encode_record(GroupMetadataKey(group_id), value))
        self._log.append(group_id, records)
        group = self._store.group_or_new(group_id)
        self._store.become(group)
        return group

    # -- events --------------------------------------------------------------------------------------------------------

    def _turn(self, classic: ClassicGroup) -> GroupTurn:
        config = self._node.config
        limits = ClassicGroupLimits(config.group_max_size, config.group_initial_rebalance_delay_ms)
        return GroupTurn(classic, limits, self._now_ms())

    def _run(self, turn: GroupTurn) -> int:
        """Carry out the effects of an event; return the number of answered requests."""
        classic = turn.group
        answered = 0
        for effect in turn.effects:
            if isinstance(effect, events.SetTimer):
                self._set_timer(classic, effect.kind, effect.member_id, effect.timeout_ms)
            elif isinstance(effect, events.CancelTimer):
                self.timers.cancel((classic.group_id, effect.kind, effect.member_id))
            elif isinstance(effect, events.AnswerSync):
                self._answer_sync(classic.group_id, effect)
                answered += 1
            elif isinstance(effect, events.AnswerJoin):
                assert isinstance(effect.waiter, Waiter)
                effect.waiter.answer(effect.answer)
                answered += 1
            else:
                error = self._write(classic.group_id, effect.value)
                following = self._turn(classic)
                effect.after(following, error)
                answered += self._run(following)
        return answered

    def _set_timer(self, classic: ClassicGroup, kind: events.TimerKind, member_id: str, timeout_ms: int) -> None:
        key = (classic.group_id, kind, member_id)
        self.timers.set(key, timeout_ms, partial(self._expired, classic, kind, member_id))

    def _answer_sync(self, group_id: str, effect: events.AnswerSync) -> None:
        """Answer SyncGroup. An assignment is sent only after any pending flush of the group's log (`flush.messages`).

        Followers wait, too, because the record written for the leader's request contains their assignments.
        """
        waiter, answer = effect.waiter, effect.answer
        assert isinstance(waiter, Waiter)
        if answer.error is ErrorCode.NONE:
            log = self._log.log_of(group_id)
            flush = self._node.flusher.pending(log)
            if flush is not None:
                waiter.answer_when_synced(answer, log, flush)
                return
        waiter.answer(answer)

    def _write(self, group_id: str, value: GroupMetadataValue) -> ErrorCode:
        try:
            self._log.append(group_id, [encode_record(GroupMetadataKey(group_id), value)])
        except (*REQUEST_ERRORS, OverflowError) as error:
            logger.warning("group %s, generation %d could not be written: %s", group_id, value.generation, error)
            return _answer_code(error)
        return ErrorCode.NONE

    def _expired(self, classic: ClassicGroup, kind: events.TimerKind, member_id: str) -> None:
        group = self._store.group(classic.group_id)
        if group is None or group.classic is not classic:
            return  # the group was deleted or converted since
        turn = self._turn(classic)
        if kind is events.TimerKind.SESSION:
            leaving.session_expired(turn, member_id)
        elif kind is events.TimerKind.JOIN:
            rebalance.join_expired(turn)
        else:
            syncing.sync_expired(turn)
        self._run(turn)

    def _now_ms(self) -> int:
        return self._node.env.clock.now_ms()


def _result(future: asyncio.Future[bytes], answered: int) -> bytes | asyncio.Future[bytes]:
    """Return the answer if the event answered only this request, otherwise its future, which keeps the answers in order."""
    return future.result() if future.done() and answered == 1 else future


def _answer_code(error: BaseException) -> ErrorCode:
    """Return the error code for the answer to JoinGroup or SyncGroup (appendGroupMetadataErrorToResponseError)."""
    if isinstance(error, OverflowError):
        return ErrorCode.UNKNOWN_SERVER_ERROR  # a name is too long for a record
    code = ErrorCode(error_of(error)[0])
    if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.NOT_COORDINATOR if code is ErrorCode.KAFKA_STORAGE_ERROR else code
