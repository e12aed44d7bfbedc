"""Share sessions: the partitions that a member of a share group fetches, remembered between its requests.

A request with epoch 0 opens a session, and one with epoch -1 closes it; the requests in between increment the epoch. A session
also ends when its connection closes. Its member's records are then released. A member has a session with each broker that
leads some of its partitions.

Bound: `group.share.max.share.sessions` for each broker.

Source: SharePartitionManager.newContext and acknowledgeSessionUpdate, ShareSessionCache of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from diamant.broker.groups.share.simple_assignor import Place
from diamant.protocol.errors import ErrorCode, KafkaError

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
_MAX_INT = (1 << 31) - 1

SessionKey: TypeAlias = tuple[str, str, int]
"""Group id, member id and broker id."""


class RequestedSession(NamedTuple):
    """The session that a request names, and the client's connection (`peer` and `broker_id` of `ConnectionInfo`)."""

    group_id: str
    member_id: str
    epoch: int
    peer: str
    broker_id: int

    @property
    def key(self) -> SessionKey:
        """The key of the session."""
        return self.group_id, self.member_id, self.broker_id


class ShareSession:
    """A session. `places`: the partitions, in the order of the next fetch. `epoch`: the epoch of the next request."""

    __slots__ = ("epoch", "peer", "places")

    def __init__(self, peer: str) -> None:
        self.epoch = 1
        self.peer = peer
        self.places: dict[Place, None] = {}


class ShareSessions:
    """All share sessions of the broker. Belongs to the loop thread."""

    def __init__(self) -> None:
        self.by_key: dict[SessionKey, ShareSession] = {}
        self._by_peer: dict[str, set[SessionKey]] = {}

    def for_fetch(
        self,
        asked: RequestedSession,
        added: Iterable[Place],
        forgotten: Iterable[Place],
        *,
        has_acknowledgements: bool,
        limit: int,
    ) -> ShareSession | None:
        """Open or continue the session of a fetch, and return it. Return None if the caller has to close it after the request.

        Raises KafkaError INVALID_REQUEST, SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, SHARE_SESSION_LIMIT_REACHED.
        """
        if not asked.member_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if asked.epoch == FINAL_EPOCH:
            self._find(asked)
            return None
        if asked.epoch == INITIAL_EPOCH:
            if has_acknowledgements:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            self.close(asked.key)
            if sum(broker_id == asked.broker_id for _, _, broker_id in self.by_key) >= limit:
                raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
            session = self.by_key[asked.key] = ShareSession(asked.peer)
            self._by_peer.setdefault(asked.peer, set()).add(asked.key)
        else:
            session = self._continued(asked)
        for place in forgotten:
            session.places.pop(place, None)
        session.places.update(dict.fromkeys(added))
        return session

    def for_acknowledgement(self, asked: RequestedSession) -> None:
        """Check an acknowledgement's session; continue it unless the request closes it. Raises KafkaError as `for_fetch` does."""
        if asked.epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        if asked.epoch == FINAL_EPOCH:
            self._find(asked)
        else:
            self._continued(asked)

    def _find(self, asked: RequestedSession) -> ShareSession:
        session = self.by_key.get(asked.key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def _continued(self, asked: RequestedSession) -> ShareSession:
        session = self._find(asked)
        if session.epoch != asked.epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = 1 if session.epoch == _MAX_INT else session.epoch + 1
        return session

    def close(self, key: SessionKey) -> list[Place]:
        """End a session if it exists; return its partitions."""
        session = self.by_key.pop(key, None)
        if session is None:
            return []
        keys = self._by_peer[session.peer]
        keys.discard(key)
        if not keys:
            del self._by_peer[session.peer]
        return list(session.places)

    def of_peer(self, peer: str) -> list[SessionKey]:
        """Return the sessions of a connection."""
        return list(self._by_peer.get(peer, ()))
