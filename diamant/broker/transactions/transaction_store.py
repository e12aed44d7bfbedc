"""Transactions by id, loaded from and written to `__transaction_state`.

Memory: one `Transaction` (about 500 bytes, plus 100 for each open partition) per transactional id used within
`transactional.id.expiration.ms`; as in Kafka, nothing else bounds their number.

While a partition loads, a thread reads its bytes, and the loop splits them into records piece by piece. Keys and values are
decoded only at the end, since later records replace most of them. A small partition is read on the loop itself. Loading takes
the memory of one piece (`CHUNK_BYTES` or one batch), and of one value per id. A record that cannot be decoded is skipped and
logged; Kafka skips unknown key versions and stops at a broken value.

Source: TransactionStateManager, its loadTransactionMetadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from diamant.broker.coordinators.internal_topic import InternalTopic, KeyValue
from diamant.broker.coordinators.partition_loader import PartitionLoader
from diamant.broker.topics.internal_names import TRANSACTION_STATE_TOPIC
from diamant.broker.topics.topic import Topic
from diamant.broker.transactions.transaction import ENDING, ONGOING, Transaction, from_value, to_value
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.errors import CorruptBatch, ErrorCode, KafkaError, ProtocolError
from diamant.protocol.internal_topics.transaction_records import encode_key, encode_value, parse_key, parse_value
from diamant.storage.kraft.features import TRANSACTION_VERSION
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import FileSlice

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)
CHUNK_BYTES = 256 * 1024
SMALL_LOG_BYTES = 64 * 1024
"""Partitions up to this size are read on the loop, which takes about 2 ms."""


class Piece(NamedTuple):
    """One or more whole batches of the log."""

    slices: tuple[FileSlice, ...]
    offset: int
    """The offset at which reading began. Earlier records of the first batch are already known."""


_Found = dict[bytes, tuple[int, bytes]]
"""The offset and value of the last record of each key."""


async def load(log: Log) -> dict[str, Transaction]:
    """Return the transactions in a log, reading to its end. Raises OSError, KafkaError."""
    latest: _Found = {}
    offset = log.log_start_offset
    is_small = log.size <= SMALL_LOG_BYTES
    while (piece := _next_piece(log, offset)) is not None:
        data = _bytes(piece) if is_small else await asyncio.to_thread(_bytes, piece)
        offset = _apply(piece, data, latest, log)
    return _decoded(latest, log)


def _next_piece(log: Log, offset: int) -> Piece | None:
    if offset >= log.log_end_offset:
        return None
    read = log.read(max(offset, log.log_start_offset), CHUNK_BYTES, isolation_level=0, min_one_message=True)
    return Piece(read.slices, offset) if read.size else None


def _bytes(piece: Piece) -> bytes:
    return b"".join(part.read() for part in piece.slices)


def _apply(piece: Piece, data: bytes, latest: _Found, log: Log) -> int:
    """Apply the records of a piece; return the offset after it."""
    offset = piece.offset
    for position, header in iter_headers(data):
        offset = max(offset, header.next_offset)
        if header.is_control:
            continue
        try:
            for record in iter_records(data, position):
                key = record.key or b""
                if record.value is None:
                    latest.pop(key, None)
                else:
                    latest[key] = (record.offset, record.value)
        except CorruptBatch as error:
            where = log.topic, log.partition, header.base_offset
            logger.error("%s-%d: the rest of the batch at offset %d is skipped: %s", *where, error.reason)
    return max(offset, piece.offset + 1)


def _decoded(latest: _Found, log: Log) -> dict[str, Transaction]:
    transactions = {}
    for key, (offset, value) in latest.items():
        try:
            transactional_id = parse_key(key)
            if transactional_id is None:
                raise ProtocolError("its key has a newer version")
            txn = from_value(transactional_id, parse_value(value))
        except (ProtocolError, ValueError) as error:
            logger.error("%s-%d: the record at offset %d is skipped: %s", log.topic, log.partition, offset, error)
            continue
        if txn is not None:
            transactions[transactional_id] = txn
    return transactions


class TransactionStore:
    """All transactions of the broker. Belongs to the loop thread."""

    def __init__(self, node: Node, opened: Callable[[], None], unfinished: Callable[[Transaction], object]) -> None:
        """`opened()` is called when the first transaction opens, `unfinished` with each loaded transaction in Prepare*."""
        config = node.config
        self._node = node
        self._opened = opened
        self._unfinished = unfinished
        self.topic = InternalTopic(
            node,
            TRANSACTION_STATE_TOPIC,
            config.transaction_state_log_num_partitions,
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": "1",
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
            factor=config.internal_factor("transaction.state.log.replication.factor"),
        )
        self.transactions: dict[str, Transaction] = {}
        """By transactional id; read-only."""
        self._open: dict[str, None] = {}
        """Ids of transactions in progress, oldest first."""
        self._in_use: Topic | None = None  # the source of `transactions`
        self._loader = self._loader_of(None)
        self._is_stopped = False

    async def stop(self) -> None:
        """Cancel the loading in progress."""
        self._is_stopped = True
        await self._loader.stop()

    # -- queries ---------------------------------------------------------------------------------------------------------

    @property
    def server_version(self) -> int:
        """The finalized `transaction.version`: 0, 1 or 2."""
        return self._node.metadata.image.features.get(TRANSACTION_VERSION, 0)

    @property
    def open_transactions(self) -> list[Transaction]:
        """The transactions in progress or ending, the oldest first."""
        return [self.transactions[transactional_id] for transactional_id in self._open]

    @property
    def has_open(self) -> bool:
        """Whether transactions are in progress or ending."""
        return bool(self._open)

    @property
    def next_timeout_ms(self) -> int | None:
        """The time at which the first open transaction times out; None if none is open."""
        running = (txn for txn in self.open_transactions if txn.state not in ENDING)
        return min((txn.start_ms + txn.timeout_ms + 1 for txn in running), default=None)

    def look_up(self, transactional_id: str) -> Transaction | None:
        """Return the transaction of an id; None if the id is unknown.

        KafkaError: INVALID_REQUEST for the empty id; NOT_COORDINATOR if the topic does not exist (FindCoordinator creates
        it) or its partition cannot be used; COORDINATOR_LOAD_IN_PROGRESS.
        """
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if self._in_use is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.topic.name} does not exist: send FindCoordinator first")
        partition = self.topic.partition_of(transactional_id)
        if partition not in self._in_use.logs:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"{self.topic.name}-{partition} cannot be used, see the broker's log"
            )
        self._loader.check(partition)
        return self.transactions.get(transactional_id)

    # -- changes ---------------------------------------------------------------------------------------------------------

    def put(self, txn: Transaction) -> Transaction:
        """Write a transaction, then apply it. Raises KafkaError if it could not be written; then nothing has changed."""
        transactional_id = txn.transactional_id
        value = encode_value(to_value(txn), 1 if self.server_version >= 1 else 0)
        record = KeyValue(encode_key(transactional_id), value)
        try:
            self.topic.append(self.topic.partition_of(transactional_id), [record])
        except KafkaError as error:
            raise _append_error(error) from error
        self._take(txn)
        return txn

    def remove(self, partition: int, transactional_ids: Iterable[str]) -> None:
        """Write tombstones for ids of one partition, and drop the ids. Raises KafkaError if they could not be written."""
        ids = list(transactional_ids)
        self.topic.append(partition, [KeyValue(encode_key(transactional_id), None) for transactional_id in ids])
        for transactional_id in ids:
            del self.transactions[transactional_id]

    def owe_flush(self, transactional_id: str) -> None:
        """Let the current request's response wait until the partition of an id is as durable as configured."""
        self._node.flusher.owe(self.topic.log(self.topic.partition_of(transactional_id)))

    def _take(self, txn: Transaction) -> None:
        self.transactions[txn.transactional_id] = txn
        if txn.state is ONGOING or txn.state in ENDING:
            if not self._open:
                self._opened()
            self._open.setdefault(txn.transactional_id)
        else:
            self._open.pop(txn.transactional_id, None)

    # -- loading ---------------------------------------------------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        """Whether some transactions are not in memory yet."""
        return not self._loader.is_done

    async def loaded(self) -> None:
        """Wait until every readable partition is loaded."""
        await self._loader.done()

    def check_all_loaded(self) -> None:
        """Raise KafkaError COORDINATOR_LOAD_IN_PROGRESS while a partition is loading; ignore unreadable partitions."""
        if not self._loader.is_done:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"{self._loader.waiting_count} partitions of {self.topic.name} are not loaded yet",
            )

    def use(self, topic: Topic | None) -> None:
        """Drop all transactions, and begin to load those of `topic`; None if the topic does not exist."""
        self._loader.cancel()
        self.transactions.clear()
        self._open.clear()
        self._in_use = topic
        self._loader = self._loader_of(None if self._is_stopped else topic)
        self._loader.start()

    def _loader_of(self, topic: Topic | None) -> PartitionLoader[dict[str, Transaction]]:
        return PartitionLoader(topic, self.topic.partition_count, "transactions", load, self._take_over)

    async def _take_over(self, partition: int, loaded: dict[str, Transaction]) -> None:
        """Adopt the transactions of a loaded partition, and finish those in Prepare*."""
        unfinished = []
        strangers = 0
        for txn in loaded.values():
            if self.topic.partition_of(txn.transactional_id) != partition:
                strangers += 1
                continue
            self._take(txn)
            if txn.state in ENDING:
                unfinished.append(txn)
        if strangers:
            # Partitions were added to the topic. Later records of these ids are in other partitions and take precedence.
            logger.warning(
                "%s-%d: %d ids that belong to other partitions are skipped", self.topic.name, partition, strangers
            )
        for txn in unfinished:
            logger.info("%s: completing transaction %s from %s", self.topic.name, txn.transactional_id, txn.state.label)
            self._unfinished(txn)
        if loaded:
            self._node.scheduler.poke()


def _append_error(error: KafkaError) -> KafkaError:
    """Return the client's error for a failed write of the state (TransactionStateManager.appendTransactionToLog)."""
    code = error.code
    if code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER):
        code = ErrorCode.NOT_COORDINATOR
    elif code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    return KafkaError(code, error.detail)
