"""The validation of signed tokens (JSON Web Tokens) with the issuer's keys, read from a file (a JSON Web Key Set).

RSA, elliptic curve and Ed25519 signatures are accepted; `none` and shared secrets (HS256) never are.

Authentications check the file at most once a second and reload it if it has changed. If it cannot be read, a warning is
logged and the previous keys stay in use. Bounds: MAX_KEYS_BYTES of the file, MAX_KEYS keys.

Source: BrokerJwtValidator, JwksFileVerificationKeyResolver. PyJWT does the cryptography; only this module imports it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import jwt

from diamant.broker.security.sasl.claims import check_times, user_of
from diamant.broker.security.sasl.oauthbearer import AcceptedToken, TokenRefused
from diamant.storage.config_key import ConfigError
from diamant.storage.input_file import read_input

logger = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
MAX_KEYS_BYTES = 1024 * 1024
MAX_KEYS = 100
LOOK_INTERVAL_S = 1.0

_KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_ONLY_THE_SIGNATURE: jwt.types.Options = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


class Expectations(NamedTuple):
    """The claims that a token needs in addition to a valid signature."""

    audiences: tuple[str, ...] = ()
    """The accepted audiences. If empty, the audience is not checked."""
    issuer: str | None = None
    clock_skew_ms: int = 0
    sub_claim: str = "sub"


class _Keys(NamedTuple):
    by_type: dict[str, list[jwt.PyJWK]]
    stamp: tuple[int, int, int]


class SignedTokens:
    """Validates signed tokens. `name` is the setting of `url`, a file:// URL. Raises ConfigError if the keys cannot be read."""

    def __init__(
        self,
        name: str,
        url: str,
        expected: Expectations,
        now_ms: Callable[[], int],
        look_interval_s: float = LOOK_INTERVAL_S,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ConfigError(f"{name}: {url!r} is not file:///path; keys are read from a file, not over the network")
        self._path = unquote(parts.path)
        self._expected = expected
        self._now_ms = now_ms
        self._looked_s = monotonic()
        self._look_interval_s = look_interval_s
        try:
            self._keys = self._read()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{name}: {self._path}: {_text(error)}") from None

    def validate(self, token: str) -> AcceptedToken:
        """Validate a token; raises TokenRefused."""
        self._look()
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise TokenRefused(f"not a token: {error}") from None
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise TokenRefused(f"its alg is {algorithm!r:.40}, expected one of {', '.join(ALGORITHMS)}")
        claims = self._verified(token, algorithm, header.get("kid"))
        self._check_issuer_and_audience(claims)
        user = user_of(claims, self._expected.sub_claim)
        expires_ms = check_times(claims, self._now_ms(), self._expected.clock_skew_ms, is_issue_required=True)
        return AcceptedToken(user, expires_ms)

    def _verified(self, token: str, algorithm: str, key_id: object) -> dict[str, object]:
        """Return the claims of a token after one of the keys has verified its signature."""
        keys = self._keys.by_type.get(_KEY_TYPES[algorithm[:2]], [])
        wanted = [key for key in keys if key_id is None or key.key_id == key_id]
        if not wanted:
            raise TokenRefused(f"there is no {algorithm} key with the kid {key_id!r:.80}")
        for key in wanted:
            try:
                return dict(jwt.decode(token, key.key, algorithms=[algorithm], options=_ONLY_THE_SIGNATURE))
            except jwt.InvalidSignatureError:
                continue
            except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
                raise TokenRefused(f"not a token: {error}") from None
        raise TokenRefused("its signature matches none of the keys")

    def _check_issuer_and_audience(self, claims: dict[str, object]) -> None:
        expected = self._expected
        if expected.issuer is not None and claims.get("iss") != expected.issuer:
            raise TokenRefused(f"its issuer is {claims.get('iss')!r:.80}")
        if expected.audiences:
            audience = claims.get("aud")
            named = audience if isinstance(audience, list) else [audience]
            if not any(one in expected.audiences for one in named if isinstance(one, str)):
                raise TokenRefused(f"its audience is {audience!r:.80}")

    def _look(self) -> None:
        """Reload the file if it has changed."""
        now_s = monotonic()
        if now_s - self._looked_s < self._look_interval_s:
            return
        self._looked_s = now_s
        try:
            if _stamp(self._path) != self._keys.stamp:
                self._keys = self._read()
                logger.info("%s: keys reloaded", self._path)
        except (OSError, ValueError) as error:
            logger.warning("%s: %s; the previous keys stay in use", self._path, _text(error))

    def _read(self) -> _Keys:
        stamp = _stamp(self._path)
        try:
            found = json.loads(read_input(self._path, MAX_KEYS_BYTES))
        except RecursionError:
            found = None
        entries = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(entries, list):
            raise ValueError('expected a JSON Web Key Set, {"keys": [...]}')
        if len(entries) > MAX_KEYS:
            raise ValueError(f"{len(entries)} keys, expected at most {MAX_KEYS}")
        by_type: dict[str, list[jwt.PyJWK]] = {}
        for number, entry in enumerate(entries):
            kind = entry.get("kty") if isinstance(entry, dict) else None
            if kind not in _KEY_TYPES.values():
                continue  # a shared secret, or an unsupported type
            try:
                by_type.setdefault(str(kind), []).append(jwt.PyJWK(entry))
            except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
                raise ValueError(f"key {number}: {error}") from None
        if not by_type:
            raise ValueError("it has no public key (kty RSA, EC or OKP)")
        return _Keys(by_type, stamp)


def _stamp(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns, status.st_size


def _text(error: OSError | ValueError) -> str:
    return str(error.strerror) if isinstance(error, OSError) and error.strerror else str(error)
