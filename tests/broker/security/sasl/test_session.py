"""Sessions: the requests that they admit, their expiry, and re-authentication. Texts and codes are those of Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from diamant.broker.security.identity.principal import Principal
from diamant.broker.security.sasl.mechanism import AuthenticationFailed, Exchange, Identity
from diamant.broker.security.sasl.plain import PlainExchange
from diamant.broker.security.sasl.session import Mechanism, Reply, SaslSession, SaslState
from diamant.protocol.errors import ErrorCode
from tests.broker.security.sasl.sasl_wire import ALICE, SASL_AUTHENTICATE, SASL_HANDSHAKE

METADATA, API_VERSIONS = 3, 18
USERS = {"alice": "secret", "bob": "b"}


class Clock:
    """A clock in milliseconds that tests move."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


class Token:
    """An exchange whose proof expires at a given time."""

    def __init__(self, expires_ms: int) -> None:
        self.identity: Identity | None = None
        self._expires_ms = expires_ms

    def respond(self, token: bytes) -> bytes:
        self.identity = Identity("alice", self._expires_ms)
        return b""


def session_of(clock: Clock, max_reauth_ms: int = 0, expires_ms: int | None = None) -> SaslSession:
    """Return a session with PLAIN, or with a token."""

    def begin() -> Exchange:
        return PlainExchange(USERS) if expires_ms is None else Token(expires_ms)

    other = Mechanism(lambda: PlainExchange(USERS), max_reauth_ms)
    mechanisms: Mapping[str, Mechanism] = {"PLAIN": Mechanism(begin, max_reauth_ms), "OTHER": other}
    return SaslSession(mechanisms, clock)


def authenticated(clock: Clock, max_reauth_ms: int = 0, expires_ms: int | None = None) -> tuple[SaslSession, Reply]:
    """Return a completed session, and the last response."""
    session = session_of(clock, max_reauth_ms, expires_ms)
    assert session.handshake(1, "PLAIN")[0] is ErrorCode.NONE
    reply = session.authenticate(ALICE)
    assert session.state is SaslState.COMPLETE
    return session, reply


def test_requests_are_admitted_by_the_state() -> None:
    """First, ApiVersions and a handshake are admitted, then tokens, then all requests; after a failure none."""
    session = session_of(Clock())
    asked = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE, METADATA, 999)

    def admitted() -> list[int]:
        return [key for key in asked if not session.refusal(key)]

    assert admitted() == [API_VERSIONS, SASL_HANDSHAKE]
    session.handshake(1, "PLAIN")
    assert admitted() == [API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE]
    session.authenticate(ALICE)
    assert admitted() == list(asked)
    session = session_of(Clock())
    session.handshake(1, "NOPE")
    session.fail("the connection is lost, too")
    assert (admitted(), session._counts.failed) == ([], 1)
    assert "Metadata before authentication" in session.refusal(METADATA)


def test_without_a_limit_a_session_has_no_end() -> None:
    """Its lifetime is 0, and a handshake is refused."""
    clock = Clock()
    session, reply = authenticated(clock)
    assert reply == Reply(ErrorCode.NONE)
    clock.ms += 10**12
    assert session.refusal(METADATA) == ""
    assert session.handshake(1, "PLAIN") == (ErrorCode.ILLEGAL_SASL_STATE, [])
    assert session.principal == Principal("User", "alice")


@pytest.mark.parametrize(
    ("max_reauth_ms", "token_ms", "lifetime_ms"),
    [(3000, None, 3000), (0, 500, 500), (3000, 500, 500), (300, 500, 300), (0, -5, 0)],
)
def test_the_shorter_of_limit_and_token_is_the_lifetime(
    max_reauth_ms: int, token_ms: int | None, lifetime_ms: int
) -> None:
    """Every later request is refused; a handshake renews the session."""
    clock = Clock()
    session, reply = authenticated(clock, max_reauth_ms, None if token_ms is None else clock.ms + token_ms)
    assert reply.session_lifetime_ms == lifetime_ms
    clock.ms += lifetime_ms
    assert session.refusal(METADATA) == ""
    clock.ms += 1
    assert "User:alice: the session has expired" in session.refusal(METADATA)
    assert session.refusal(SASL_AUTHENTICATE) != ""
    assert session.refusal(SASL_HANDSHAKE) == ""


def test_a_client_authenticates_again() -> None:
    """A client may authenticate again once a second. An earlier handshake is an illegal state and leaves the session
    unchanged.
    """
    clock = Clock()
    session, _ = authenticated(clock, 3000)
    assert session.handshake(1, "PLAIN")[0] is ErrorCode.NONE
    assert session.authenticate(ALICE) == Reply(ErrorCode.NONE, session_lifetime_ms=3000)
    clock.ms += 999
    assert session.handshake(1, "PLAIN") == (ErrorCode.ILLEGAL_SASL_STATE, [])
    assert session.refusal(METADATA) == ""
    clock.ms += 1
    assert session.handshake(1, "PLAIN")[0] is ErrorCode.NONE


@pytest.mark.parametrize(
    ("mechanism", "token", "message"),
    [
        ("PLAIN", b"\0bob\0b", "Cannot change principals during re-authentication from User.alice: User.bob"),
        ("PLAIN", b"\0alice\0no", "Authentication failed: Invalid username or password"),
        (
            "OTHER",
            ALICE,
            "SASL mechanism 'OTHER' requested by client is not supported for re-authentication of mechanism 'PLAIN'",
        ),
    ],
)
def test_a_client_cannot_become_another(mechanism: str, token: bytes, message: str) -> None:
    """Neither the client's principal nor its mechanism may change; otherwise the session fails."""
    session, _ = authenticated(Clock(), 3000)
    assert session.handshake(1, mechanism)[0] is ErrorCode.NONE
    assert session.authenticate(token) == Reply(ErrorCode.SASL_AUTHENTICATION_FAILED, message)
    assert session.state is SaslState.FAILED
    assert session.refusal(METADATA) != ""


def test_the_general_text_says_when_it_was() -> None:
    """The text says authentication or re-authentication, as in Kafka."""

    class Failing:
        identity: Identity | None = None

        def respond(self, token: bytes) -> bytes:
            raise AuthenticationFailed("the reason for the log")

    mechanisms = {"PLAIN": Mechanism(Failing, 0)}
    session = SaslSession(mechanisms, Clock())
    session.handshake(1, "PLAIN")
    told = "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"
    assert session.authenticate(b"") == Reply(ErrorCode.SASL_AUTHENTICATION_FAILED, told)
    assert session.failure == "authentication failed: the reason for the log"
    session, _ = authenticated(Clock(), 3000)
    session._mechanisms = mechanisms
    session.handshake(1, "PLAIN")
    assert session.authenticate(b"").message == told.replace("during authentication", "during re-authentication")
