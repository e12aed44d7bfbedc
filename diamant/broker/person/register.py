"""The register of persons' requests: one JSON record for each request, in the compacted topic `__diamant_requests`.

The register holds HMACs instead of identifiers; they only show whether two requests are about the same person. A change is
written to the topic before it is made in memory. Bounds: memory holds the newest `MAX_REQUESTS` requests, the topic holds all.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from diamant.broker.coordinators.internal_topic import InternalTopic
from diamant.broker.operation_errors import NotFound, NotPossible, TooMany
from diamant.broker.topics.internal_names import REQUESTS_TOPIC
from diamant.cleaner.papers.person_parts import identifier_digest
from diamant.cleaner.segments.tolerant_reader import Problem, iter_batches, list_partition
from diamant.protocol.errors import KafkaError
from diamant.storage import names

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

MAX_REQUESTS = 100_000
ID_BYTES = 16

RECEIVED, IN_PROGRESS, DONE, CLOSED = "received", "in-progress", "done", "closed"
"""The states of a request. `CLOSED`: ended without a final paper, for the reason in `closed_because`."""
OPEN = (RECEIVED, IN_PROGRESS)

KINDS = ("forget", "show", "correct")


@dataclass(frozen=True, slots=True)
class Extension:
    """An extension of a due date, with its reason."""

    reason: str
    at_ms: int
    due_before_ms: int


@dataclass(frozen=True, slots=True)
class PersonRequest:
    """A request. Its times are on the broker's clock."""

    id: str
    kind: str
    received_ms: int
    due_ms: int
    reference: str
    identifiers: tuple[tuple[str, str], ...]
    """The name and HMAC of each identifier."""
    state: str = RECEIVED
    reason: str = ""
    topics: tuple[Mapping[str, Any], ...] = ()
    """For each topic: its name, the action, the number of the person's records at the time of planning, and `kept_until_ms` if
    records are kept.
    """
    certificate: str = ""
    """The state of the last paper; "" if there is none."""
    extensions: tuple[Extension, ...] = ()
    closed_ms: int | None = None
    closed_because: str = ""

    @property
    def is_open(self) -> bool:
        """True until the request is done or closed."""
        return self.state in OPEN

    def to_fields(self) -> Mapping[str, Any]:
        """Return the JSON object of the request."""
        found = asdict(self)
        found["identifiers"] = [{"name": name, "hmac": digest} for name, digest in self.identifiers]
        return found

    @classmethod
    def from_fields(cls, found: Mapping[str, Any]) -> PersonRequest:
        """Return the request that a JSON object from `to_fields` describes. Raises KeyError, TypeError."""
        given = {
            "identifiers": tuple((one["name"], one["hmac"]) for one in found["identifiers"]),
            "topics": tuple(found["topics"]),
            "extensions": tuple(Extension(**one) for one in found["extensions"]),
        }
        return cls(**{**found, **given})


def digests(secret: bytes, identifiers: Mapping[str, Sequence[str]]) -> tuple[tuple[str, str], ...]:
    """Return the name and HMAC of each identifier."""
    return tuple(
        (name, identifier_digest(secret, name, value))
        for name, values in sorted(identifiers.items())
        for value in values
    )


class RequestRegister:
    """All requests of one broker. Belongs to the loop thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._topic = InternalTopic(
            node,
            REQUESTS_TOPIC,
            1,
            {"cleanup.policy": "compact", "compression.type": "producer"},
            factor=node.config.internal_factor("offsets.topic.replication.factor"),
        )
        self._requests: dict[str, PersonRequest] = {}
        """The requests by id, in the order of their last change."""
        self._loading: asyncio.Lock = asyncio.Lock()
        self._is_loaded = False

    async def load(self) -> None:
        """Read the topic if it exists and has not been read yet."""
        async with self._loading:
            if self._is_loaded:
                return
            if self._topic.exists:
                self._requests = await asyncio.to_thread(self._read)
            self._is_loaded = True

    def known(self) -> Iterable[PersonRequest]:
        """Return the requests, least recently changed first. Empty before `load`."""
        return self._requests.values()

    @property
    def open_count(self) -> int:
        """The number of open requests."""
        return sum(one.is_open for one in self._requests.values())

    @property
    def next_due_ms(self) -> int | None:
        """The earliest due date of an open request; None if none is open."""
        return min((one.due_ms for one in self._requests.values() if one.is_open), default=None)

    def open_of(self, identifiers: Iterable[tuple[str, str]], besides: Collection[str]) -> PersonRequest | None:
        """Return an open request that has one of these identifiers, or None. `besides`: the IDs of requests to ignore."""
        sought = {*identifiers}
        known = (one for one in self._requests.values() if one.is_open and one.id not in besides)
        return next((one for one in known if sought & {*one.identifiers}), None)

    def get(self, request_id: str) -> PersonRequest:
        """Return a request. Raises NotFound."""
        found = self._requests.get(request_id)
        if found is None:
            raise NotFound(f"there is no request {request_id[:64]!r}; `diamant person requests` lists all requests")
        return found

    async def put(self, request: PersonRequest) -> PersonRequest:
        """Write a new or changed request. Raises NotPossible if the topic cannot be written, TooMany if too many are open."""
        await self.load()
        if request.id not in self._requests and len(self._requests) >= MAX_REQUESTS:
            oldest = next((one.id for one in self._requests.values() if not one.is_open), None)
            if oldest is None:
                raise TooMany(f"{MAX_REQUESTS:,} requests are open: close some of them first")
            del self._requests[oldest]
        try:
            await self._topic.ensure()
            self._topic.append(0, [(request.id.encode(), json.dumps(request.to_fields()).encode())])
        except KafkaError as error:
            raise NotPossible(f"{REQUESTS_TOPIC} cannot be written: {error}") from None
        self._requests.pop(request.id, None)
        self._requests[request.id] = request
        return request

    async def change(self, request_id: str, **changes: Any) -> PersonRequest:
        """Change fields of a request. Raises NotFound, NotPossible."""
        await self.load()
        found = self.get(request_id)
        changed = replace(found, **changes)
        return found if changed == found else await self.put(changed)

    @staticmethod
    def new_id() -> str:
        """Return a new id for a request."""
        return os.urandom(ID_BYTES).hex()

    def _read(self) -> dict[str, PersonRequest]:
        """Return the requests, each from its latest record. Blocking."""
        problems: list[Problem] = []
        env, path = self._node.env, f"{self._node.config.data_dir}/{names.partition_dir_name(REQUESTS_TOPIC, 0)}"
        found: dict[str, PersonRequest] = {}
        for segment in list_partition(env, path, (REQUESTS_TOPIC, 0), {}).segments:
            for batch in iter_batches(env, segment, problems.append):
                for record in () if batch.header.is_control else batch.records():
                    request_id = (record.key or b"").decode(errors="replace")
                    found.pop(request_id, None)
                    try:
                        if record.value is not None:
                            found[request_id] = PersonRequest.from_fields(json.loads(record.value))
                    except (ValueError, KeyError, TypeError):
                        logger.warning("%s: the record at offset %d is not a request", REQUESTS_TOPIC, record.offset)
        for problem in problems:
            logger.error("some requests in the register cannot be read: %s", problem)
        return dict(list(found.items())[-MAX_REQUESTS:])
