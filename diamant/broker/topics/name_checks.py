"""Checks of topic names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from diamant.broker.topics.internal_names import METADATA_TOPIC
from diamant.protocol.errors import ErrorCode, KafkaError

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


def check_name(name: str) -> None:
    """Check a topic name (`common.internals.Topic.validate`). KafkaError: INVALID_TOPIC_EXCEPTION, INVALID_REQUEST."""
    reason = ""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > 249:
        reason = f"the length of '{name}' is longer than the max allowed length 249"
    elif _NAME.fullmatch(name) is None:
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    elif name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    if reason:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def check_collision(name: str, others: Iterable[str]) -> None:
    """Check that no other topic has a name that differs only in '.' and '_', since their metrics would have the same names.

    KafkaError: INVALID_TOPIC_EXCEPTION. Source: `common.internals.Topic.hasCollision`.
    """
    if "." not in name and "_" not in name:
        return
    form = name.replace(".", "_")
    colliding = [other for other in others if other.replace(".", "_") == form]
    if colliding:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {', '.join(colliding)}",
        )
