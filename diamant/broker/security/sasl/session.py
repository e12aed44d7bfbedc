"""The SASL session of one connection: the client's principal and the requests that it may send.

    BEGINS        only ApiVersions and SaslHandshake are served
    AUTHENTICATES the mechanism is agreed on; SaslAuthenticate carries its tokens (after SaslHandshake v0: frames without header)
    COMPLETE      the client is authenticated; all requests are served until the session expires
    FAILED        the response reports the failure, and the connection is closed

A session expires after `connections.max.reauth.ms`, or with its token. The client renews it with a handshake, for the same
principal and mechanism. Requests are served until the session expires; a later request closes the connection (KIP-368).

The session uses no sockets. Memory: one exchange, which holds one token at most.

Source: SaslServerAuthenticator, KafkaChannel.maybeBeginServerReauthentication; messages as in Kafka 4.3.1. Deviation: ApiVersions
may be sent more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from diamant.broker.security.identity.authentication_counts import AuthenticationCounts
from diamant.broker.security.identity.principal import USER, Principal
from diamant.broker.security.sasl.mechanism import AuthenticationFailed, Exchange
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.apis import API_NAMES, API_VERSIONS

SASL_HANDSHAKE = 17
SASL_AUTHENTICATE = 36
MIN_REAUTHENTICATION_INTERVAL_MS = 1_000
"""KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS."""


class SaslState(Enum):
    """The states of a session, described above."""

    BEGINS = 1
    AUTHENTICATES = 2
    COMPLETE = 3
    FAILED = 4


class Mechanism(NamedTuple):
    """An enabled mechanism of a listener."""

    begin: Callable[[], Exchange]
    max_reauth_ms: int
    """The maximum lifetime of a session in ms; 0: unlimited."""


class Reply(NamedTuple):
    """The response to a token."""

    code: ErrorCode
    message: str = ""
    token: bytes = b""
    session_lifetime_ms: int = 0


ALREADY_AUTHENTICATED = Reply(
    ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate request received after successful authentication"
)


class SaslSession:
    """The session of one connection. `now_ms` is the broker's clock."""

    def __init__(
        self, mechanisms: Mapping[str, Mechanism], now_ms: Callable[[], int], counts: AuthenticationCounts | None = None
    ) -> None:
        """`counts`: the listener's counts of successes and failures."""
        self.state = SaslState.BEGINS
        self.principal: Principal | None = None
        self.failure = ""
        """The reason for a failure, for the log."""
        self.sends_bare_tokens = False
        """True after SaslHandshake v0: tokens and their responses have no header."""
        self._mechanisms = mechanisms
        self._now_ms = now_ms
        self._counts = AuthenticationCounts() if counts is None else counts
        self._mechanism = ""
        self._asked_mechanism = ""
        self._exchange: Exchange | None = None
        self._expires_ms: int | None = None
        self._reauthentication_begun_ms: int | None = None

    # -- which requests are served ------------------------------------------------------------------------------------

    def refusal(self, api_key: int) -> str:
        """Return the reason to close the connection instead of serving this request; empty if the request may be served."""
        if self.state is SaslState.COMPLETE:
            if self._expires_ms is None or self._now_ms() <= self._expires_ms or self._may_reauthenticate(api_key):
                return ""
            self._counts.expired += 1
            return f"{self.principal}: the session has expired, and the client has not authenticated again"
        if self.state is SaslState.BEGINS and api_key in (API_VERSIONS, SASL_HANDSHAKE):
            return ""
        if self.state is SaslState.AUTHENTICATES and api_key in (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE):
            return ""
        name = API_NAMES.get(api_key, f"API key {api_key}")
        return f"{name} before authentication (is the client configured for SASL?)"

    @property
    def is_awaiting_token(self) -> bool:
        """True from the handshake to the end of the authentication. Then ApiVersions fails with ILLEGAL_SASL_STATE."""
        return self.state is SaslState.AUTHENTICATES

    def fail(self, reason: str) -> None:
        """End the session, so that no further request is served."""
        if self.state is SaslState.AUTHENTICATES or self.state is SaslState.BEGINS:
            if self.principal is None:
                self._counts.failed += 1
            else:
                self._counts.failed_again += 1
        self.state, self.failure, self._exchange = SaslState.FAILED, reason, None

    # -- its two requests ---------------------------------------------------------------------------------------------

    def handshake(self, version: int, mechanism: str) -> tuple[ErrorCode, list[str]]:
        """Agree on a mechanism; return the error code and the enabled mechanisms."""
        if self.state is SaslState.COMPLETE:
            if not self._may_reauthenticate(SASL_HANDSHAKE):
                return ErrorCode.ILLEGAL_SASL_STATE, []
            self._reauthentication_begun_ms = self._now_ms()
        elif self.state is not SaslState.BEGINS:
            self.fail("SaslHandshake during authentication")
            return ErrorCode.ILLEGAL_SASL_STATE, []
        known = list(self._mechanisms)
        if mechanism not in self._mechanisms:
            self.fail(f"SASL mechanism {mechanism!r:.80} is not enabled (enabled: {', '.join(known)})")
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM, known
        self.sends_bare_tokens = version == 0
        self.state = SaslState.AUTHENTICATES
        if self.principal is None:
            self._mechanism = mechanism
        self._exchange = self._mechanisms[mechanism].begin()
        self._asked_mechanism = mechanism
        return ErrorCode.NONE, known

    def authenticate(self, token: bytes) -> Reply:
        """Pass a token to the exchange and return the reply to the client."""
        if self._exchange is None:
            return ALREADY_AUTHENTICATED
        try:
            self._check_mechanism()
            answer = self._exchange.respond(token)
            identity = self._exchange.identity
            if identity is None:
                return Reply(ErrorCode.NONE, token=answer)
            principal = Principal(USER, identity.user)
            self._check_principal(principal)
        except AuthenticationFailed as failed:
            told = failed.told
            if told is None:
                what = "authentication" if self.principal is None else "re-authentication"
                told = f"Authentication failed during {what} due to invalid credentials with SASL mechanism {self._mechanism}"
            self.fail(f"authentication failed: {failed}")
            return Reply(ErrorCode.SASL_AUTHENTICATION_FAILED, told)
        if self.principal is None:
            self._counts.successful += 1
        else:
            self._counts.successful_again += 1
        self.principal, self._exchange = principal, None
        self.state = SaslState.COMPLETE
        lifetime_ms = self._begin_session(identity.expires_ms)
        return Reply(ErrorCode.NONE, token=answer, session_lifetime_ms=lifetime_ms)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _may_reauthenticate(self, api_key: int) -> bool:
        if api_key != SASL_HANDSHAKE or self._expires_ms is None:
            return False
        begun_ms = self._reauthentication_begun_ms
        return begun_ms is None or self._now_ms() - begun_ms >= MIN_REAUTHENTICATION_INTERVAL_MS

    def _check_mechanism(self) -> None:
        if self._asked_mechanism != self._mechanism:
            text = (
                f"SASL mechanism '{self._asked_mechanism}' requested by client is not supported for re-authentication of "
                f"mechanism '{self._mechanism}'"
            )
            raise AuthenticationFailed(text, text)

    def _check_principal(self, principal: Principal) -> None:
        old = self.principal
        if old is not None and old != principal:
            text = (
                f"Cannot change principals during re-authentication from {old.type}.{old.name}: "
                f"{principal.type}.{principal.name}"
            )
            raise AuthenticationFailed(text, text)

    def _begin_session(self, proof_expires_ms: int | None) -> int:
        """Set the expiry time of the session; return the session's lifetime in milliseconds, 0 if unlimited."""
        now_ms, max_ms = self._now_ms(), self._mechanisms[self._mechanism].max_reauth_ms
        lifetimes = [] if proof_expires_ms is None else [proof_expires_ms - now_ms]
        if max_ms > 0:
            lifetimes.append(max_ms)
        if not lifetimes:
            self._expires_ms = None
            return 0
        lifetime_ms = max(min(lifetimes), 0)
        self._expires_ms = now_ms + lifetime_ms
        return lifetime_ms
