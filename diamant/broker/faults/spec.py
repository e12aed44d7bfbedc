"""The validated specification of a fault: which requests it matches, and its effects. Python and JSON use the same field names.

FaultSpec.make(api="Produce", topic="orders", error="NOT_LEADER_OR_FOLLOWER", times=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from diamant.argument import MAX_PARTITION
from diamant.broker.faults.fault_requests import FaultRequest
from diamant.broker.operation_errors import BadArgument
from diamant.broker.operations.calls.parameters import request_of
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire import apis

MAX_TEXT_LENGTH = 1000
"""The longest topic, client id or host, in characters."""

METADATA = 3
INIT_PRODUCER_ID = 22

EFFECTS = (
    "error", "delay_ms", "hold", "drop", "cut", "throttle_time_ms", "stale", "coordinator_loading", "certificate",
)  # fmt: skip

_STALE_INTS = {"partition_count": 0, "leader_id": -1, "leader_epoch": -1, "port": 0}
"""The minimum values of integer fields of `stale`."""


class FaultError(BadArgument, ValueError):
    """Raised if a specification is invalid: an unknown name, a value out of range, or no effect."""


@dataclass(frozen=True, slots=True)
class FaultSpec(FaultRequest):
    """The specification of one fault. `make` validates it."""

    error: ErrorCode | None = None
    api_keys: frozenset[int] | None = None
    """The keys of the APIs in `api`. None: every API or, with `coordinator_loading`, every API of a coordinator."""

    @classmethod
    def make(cls, **values: Any) -> FaultSpec:
        """Validate a user's values. Raises FaultError, which names the field, the valid values and the given value."""
        unknown = sorted(set(values) - _DEFAULTS.keys())
        if unknown:
            raise FaultError(f"{unknown[0]}: unknown field; expected one of {', '.join(sorted(_DEFAULTS))}")
        try:
            return cls.of(request_of(FaultRequest, values))
        except BadArgument as error:
            raise FaultError(str(error)) from None

    @classmethod
    def of(cls, request: FaultRequest) -> FaultSpec:
        """Validate a request whose types have been checked. Raises FaultError."""
        given = {name: getattr(request, name) for name in _DEFAULTS}
        spec = cls(**{**given, "api_keys": _api_keys(request.api), "error": _error(request.error)})
        _check_values(spec)
        _check_effects(spec)
        stale = None if spec.stale is None else _stale(spec.stale)
        api_keys, error = spec.api_keys, spec.error
        if spec.coordinator_loading:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if stale is not None:
            api_keys = frozenset({METADATA}) if api_keys is None else api_keys
            if api_keys != {METADATA}:
                raise FaultError("stale: applies only to Metadata; leave `api` out")
        return replace(spec, stale=stale, api_keys=api_keys, error=error)

    def matches_client(self, client_id: str | None) -> bool:
        """Return whether `client_id` equals the id or matches the pattern."""
        if self.client_id is None:
            return True
        return client_id is not None and (client_id == self.client_id or fnmatchcase(client_id, self.client_id))

    @property
    def effect(self) -> str:
        """The first effect, as one word: error, delay, hold, drop, cut, throttle, stale, loading or certificate."""
        names = {"delay_ms": "delay", "throttle_time_ms": "throttle", "coordinator_loading": "loading"}
        order = ("coordinator_loading", *(name for name in EFFECTS if name != "delay_ms"), "delay_ms")
        return next(
            names.get(name, name)
            for name in order
            if getattr(self, name) not in (None, False, 0) or (name == "cut" and self.is_cut)
        )

    @property
    def is_cut(self) -> bool:
        """True if the response is cut, even before its first byte (`cut=0`)."""
        return self.cut is not False

    def as_json(self) -> dict[str, object]:
        """Return the specification as a JSON object, without fields that have their default value."""
        shown: dict[str, object] = {}
        if self.api_keys is not None:
            names = [apis.API_NAMES[key] for key in sorted(self.api_keys)]
            shown["api"] = names[0] if len(names) == 1 else names
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if name == "api" or (value == default and type(value) is type(default)):
                continue
            if name == "error":
                shown["error"] = value.name
            else:
                shown[name] = value
        return shown


_DEFAULTS = {field.name: field.default for field in fields(FaultRequest)}
_API_KEYS = {name.lower(): key for key, name in apis.API_NAMES.items()}


def _api_keys(api: Any) -> frozenset[int] | None:
    if api is None:
        return None
    if isinstance(api, list | tuple | set | frozenset):
        if not api:
            raise FaultError("api: the list is empty; leave out `api` to match every API")
        return frozenset(_api_key(one) for one in api)
    return frozenset({_api_key(api)})


def _api_key(api: Any) -> int:
    if isinstance(api, int) and not isinstance(api, bool) and api in apis.SERVED:
        return int(api)
    if isinstance(api, str) and (key := _API_KEYS.get(api.lower())) in apis.SERVED:
        assert key is not None
        return key
    raise FaultError(f"api: {api!r} is unknown; expected a name such as Produce, a key such as 0, or a list of them")


def _error(error: Any) -> ErrorCode | None:
    if error is None:
        return None
    try:
        if isinstance(error, str):
            code = ErrorCode[error.upper()]
        elif isinstance(error, int) and not isinstance(error, bool):
            code = ErrorCode(error)
        else:
            raise KeyError(error)
    except (KeyError, ValueError):
        raise FaultError(f"error: {error!r} is unknown; expected a name (NOT_LEADER_OR_FOLLOWER) or number") from None
    if code is ErrorCode.NONE:
        raise FaultError("error: NONE is not an error")
    return code


def _check_values(spec: FaultSpec) -> None:
    """Check what the field declarations of `FaultRequest` do not check. Raises FaultError."""
    for name in ("client_id", "topic"):
        value = getattr(spec, name)
        if value is not None and not 0 < len(value) <= MAX_TEXT_LENGTH:
            raise FaultError(f"{name}: expected a string of 1 to {MAX_TEXT_LENGTH} characters, got {value!r:.100}")
    if not isinstance(spec.cut, bool):
        _check_int("cut", spec.cut, 0, MAX_PARTITION)
    probability = spec.probability
    if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 < probability <= 1:
        raise FaultError(f"probability: expected a number above 0 and up to 1, got {probability!r:.100}")


def _check_int(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise FaultError(f"{name}: expected an integer from {least} to {most}, got {value!r:.100}")


def _check_effects(spec: FaultSpec) -> None:
    if spec.certificate is not None:
        _check_certificate(spec)
        return
    answering = [
        name
        for name, is_set in (
            ("error", spec.error is not None),
            ("coordinator_loading", spec.coordinator_loading),
            ("drop", spec.drop),
            ("cut", spec.is_cut),
            ("stale", spec.stale is not None),
        )
        if is_set
    ]
    if len(answering) > 1 and answering not in (["error", "cut"], ["coordinator_loading", "cut"], ["cut", "stale"]):
        raise FaultError(f"{' and '.join(answering)} cannot be combined in one fault; add a separate fault for each")
    if not answering and not (spec.delay_ms or spec.hold or spec.throttle_time_ms):
        raise FaultError(f"the fault has no effect: expected one of {', '.join(EFFECTS)}")
    if spec.hold and spec.delay_ms:
        raise FaultError("hold and delay_ms cannot be combined; to end a hold, release or remove the fault")
    if spec.partition is not None and spec.topic is None:
        raise FaultError("partition: needs a topic")
    if spec.probability == 1 and spec.seed is not None:
        raise FaultError("seed: needs a probability below 1")


def _check_certificate(spec: FaultSpec) -> None:
    others = [
        name
        for name, default in _DEFAULTS.items()
        if name not in ("certificate", "after", "times", "probability", "seed") and getattr(spec, name) != default
    ]
    if others:
        raise FaultError(
            f"{others[0]} and certificate cannot be combined: a certificate fault matches connections; add two faults"
        )


def _stale(stale: Any) -> dict[str, object]:
    if not isinstance(stale, Mapping) or not stale:
        raise FaultError('stale: expected an object such as {"missing": true} or {"leader_id": 2, "port": 9999}')
    for name, value in stale.items():
        if name in _STALE_INTS:
            _check_int(f"stale.{name}", value, _STALE_INTS[name], 65535 if name == "port" else MAX_PARTITION)
        elif name == "missing":
            if value is not True:
                raise FaultError(f"stale.missing: expected true, got {value!r:.100}")
        elif name == "host":
            if not (isinstance(value, str) and 0 < len(value) <= MAX_TEXT_LENGTH):
                raise FaultError(f"stale.host: expected a host name, got {value!r:.100}")
        else:
            known = ", ".join(["missing", "host", *_STALE_INTS])
            raise FaultError(f"stale.{name}: unknown field; expected one of {known}")
    if "missing" in stale and len(stale) > 1:
        raise FaultError("stale: missing excludes all other fields")
    return dict(stale)
