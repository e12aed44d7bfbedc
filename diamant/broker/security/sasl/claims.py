"""The required claims of an OAUTHBEARER token: its user and its validity period.

Source: OAuthBearerValidationUtils, BrokerJwtValidator.
"""

from __future__ import annotations

from collections.abc import Mapping

from diamant.broker.security.sasl.oauthbearer import TokenRefused

MAX_SECONDS = 1 << 40
"""The upper bound of time claims, so that calculations with them cannot overflow."""


def user_of(claims: Mapping[str, object], claim: str) -> str:
    """Return the user that a claim names. Raises TokenRefused if the claim is missing, blank, or not a string."""
    user = claims.get(claim)
    if not isinstance(user, str) or not user.strip():
        raise TokenRefused(f"the claim {claim} names no user")
    return user


def time_ms(claims: Mapping[str, object], claim: str, *, is_required: bool) -> int | None:
    """Return a time claim (seconds since 1970) in milliseconds. Raises TokenRefused if it is invalid, or required but missing."""
    value = claims.get(claim)
    if value is None and not is_required:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_SECONDS:
        raise TokenRefused(
            f"the claim {claim} is not a valid time" if value is not None else f"there is no claim {claim}"
        )
    return int(value * 1000)


def check_times(claims: Mapping[str, object], now_ms: int, skew_ms: int, *, is_issue_required: bool) -> int:
    """Return the expiry time of a token in milliseconds. Raises TokenRefused if the token is not valid now."""
    expires_ms = time_ms(claims, "exp", is_required=True)
    assert expires_ms is not None
    time_ms(claims, "iat", is_required=is_issue_required)
    begins_ms = time_ms(claims, "nbf", is_required=False)
    if now_ms - skew_ms >= expires_ms:
        raise TokenRefused(f"it expired {now_ms - expires_ms} ms ago")
    if begins_ms is not None and begins_ms > now_ms + skew_ms:
        raise TokenRefused(f"it becomes valid in {begins_ms - now_ms} ms (nbf)")
    return expires_ms
