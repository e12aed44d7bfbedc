"""The validation of tokens without a signature (`alg` none). Anybody can make such tokens, so they have to be enabled.

Options of the login module: unsecuredValidatorPrincipalClaimName, ...ScopeClaimName, ...RequiredScope, ...AllowableClockSkewMs.

Source: OAuthBearerUnsecuredValidatorCallbackHandler, OAuthBearerUnsecuredJws.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping

from diamant.broker.security.sasl.claims import check_times, time_ms, user_of
from diamant.broker.security.sasl.oauthbearer import AcceptedToken, TokenRefused
from diamant.storage.config_key import ConfigError

_OPTION = "unsecuredValidator"


class UnsecuredTokens:
    """Validates unsigned tokens by trusting their claims. `name`: the name of the listener, for messages."""

    def __init__(self, options: Mapping[str, str], now_ms: Callable[[], int], name: str) -> None:
        self._now_ms = now_ms
        self._sub_claim = options.get(f"{_OPTION}PrincipalClaimName", "").strip() or "sub"
        self._scope_claim = options.get(f"{_OPTION}ScopeClaimName", "").strip() or "scope"
        self._required_scopes = options.get(f"{_OPTION}RequiredScope", "").split()
        skew = options.get(f"{_OPTION}AllowableClockSkewMs", "").strip() or "0"
        if not skew.isdecimal() or len(skew) > 9:
            raise ConfigError(
                f"{name}: {_OPTION}AllowableClockSkewMs: expected milliseconds, 0 or more, got {skew:.40}"
            )
        self._skew_ms = int(skew)

    def validate(self, token: str) -> AcceptedToken:
        """Validate a token; raises TokenRefused."""
        parts = token.split(".")
        if len(parts) != 3 or parts[2]:
            raise TokenRefused("expected header.claims. without a signature")
        header, claims = _object(parts[0], "header"), _object(parts[1], "claims")
        if header.get("alg") != "none":
            raise TokenRefused("its alg is not none")
        user = user_of(claims, self._sub_claim)
        now_ms = self._now_ms()
        issued_ms = time_ms(claims, "iat", is_required=False)
        expires_ms = check_times(claims, now_ms, self._skew_ms, is_issue_required=False)
        if issued_ms is not None and (issued_ms > now_ms + self._skew_ms or issued_ms >= expires_ms):
            raise TokenRefused("it was issued in the future, or after its expiry")
        self._check_scope(claims)
        return AcceptedToken(user, expires_ms)

    def _check_scope(self, claims: Mapping[str, object]) -> None:
        scope = claims.get(self._scope_claim, "")
        has = scope.split() if isinstance(scope, str) else scope if isinstance(scope, list) else []
        for required in self._required_scopes:
            if required not in has:
                raise TokenRefused(
                    f"the scope {required} is missing", "insufficient_scope", " ".join(self._required_scopes)
                )


def _object(part: str, what: str) -> dict[str, object]:
    try:
        found = json.loads(base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TokenRefused(f"its {what} is not a JSON object in base64")
    return found
