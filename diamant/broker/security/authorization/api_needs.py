"""The table of the permissions that each API needs, and of the responses to a denial. An API without a row is not executed.

The needs in `ApiRow.whole` are checked before the handler is called; the response to a denial has the error code of the need, as
with Kafka's `getErrorResponse`. The handler checks the needs of single items (`ApiRow.items`) through an `Access`, which knows
only the needs of its row. tests/broker/security/authorization compares every API with its row.

Source: KafkaApis, ControllerApis, AclApis, ConfigHelper of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from diamant.broker.security.authorization import needs
from diamant.broker.security.authorization.needs import Need


class Whole(NamedTuple):
    """A need of the request as a whole."""

    need: Need
    field: str = ""
    """The request field that names the resource; "" for the cluster. If the field is null, the need does not apply."""
    or_need: Need | None = None
    """An alternative need on the same resource."""
    first_version: int = 0
    last_version: int = 1000
    """The range of versions to which the need applies."""


class ApiRow(NamedTuple):
    """The needs of one API."""

    whole: tuple[Whole, ...] = ()
    items: Mapping[Need, str] = {}
    """The needs that the handler checks, each with the response to a denial."""
    is_open: str = ""
    """The reason why a response is allowed without any need, or with none of `items`; "" if it is not."""

    @property
    def needs(self) -> frozenset[Need]:
        """All declared needs."""
        of_whole = {need for whole in self.whole for need in (whole.need, whole.or_need) if need is not None}
        return frozenset(of_whole | self.items.keys())


_PARTITION = "TOPIC_AUTHORIZATION_FAILED for each partition"
_TOPIC = "TOPIC_AUTHORIZATION_FAILED for the topic"
_LEFT_OUT = "left out"
_RESOURCE = "the error code of the resource type, for the resource"
_GROUP_READ = Whole(needs.READ_GROUP, "group_id")
_TRANSACTION = Whole(needs.WRITE_TRANSACTIONAL_ID, "transactional_id")
_ALTER = ApiRow((Whole(needs.ALTER_CLUSTER),))
_DESCRIBE = ApiRow((Whole(needs.DESCRIBE_CLUSTER),))
_TOKENS = ApiRow(is_open="delegation tokens are not supported, and every request is refused")

_CONFIG_READS = {
    needs.DESCRIBE_CONFIGS_TOPIC: _RESOURCE,
    needs.DESCRIBE_CONFIGS_GROUP: _RESOURCE,
    needs.DESCRIBE_CONFIGS_CLUSTER: f"{_RESOURCE}; brokers, their loggers and client metrics belong to the cluster",
}
_CONFIG_CHANGES = {
    needs.ALTER_CONFIGS_TOPIC: _RESOURCE,
    needs.ALTER_CONFIGS_GROUP: _RESOURCE,
    needs.ALTER_CONFIGS_CLUSTER: f"{_RESOURCE}; brokers, their loggers and client metrics belong to the cluster",
}

API_NEEDS: dict[int, ApiRow] = {
    0: ApiRow(
        items={
            needs.WRITE_TOPIC: _PARTITION,
            needs.WRITE_TRANSACTIONAL_ID: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED for each partition, if a batch is transactional",
        }
    ),
    1: ApiRow(
        items={
            needs.READ_TOPIC: f"{_PARTITION}",
            needs.CLUSTER_ACTION: f"for followers in place of READ: {_PARTITION}",
        }
    ),
    2: ApiRow(items={needs.DESCRIBE_TOPIC: _PARTITION}),
    3: ApiRow(
        items={
            needs.DESCRIBE_TOPIC: f"{_TOPIC}; left out if all topics are requested",
            needs.CREATE_CLUSTER: "to create a topic automatically; CREATE on the topic is enough",
            needs.CREATE_TOPIC: f"to create it automatically: {_TOPIC}",
            needs.DESCRIBE_CLUSTER: "no authorized operations of the cluster",
        },
        is_open="the addresses of the brokers",
    ),
    8: ApiRow((_GROUP_READ,), {needs.READ_TOPIC: _PARTITION}),
    9: ApiRow(
        items={
            needs.DESCRIBE_GROUP: "GROUP_AUTHORIZATION_FAILED for the group",
            needs.DESCRIBE_TOPIC: f"{_PARTITION}; left out if all topics are requested",
        }
    ),
    10: ApiRow(
        items={
            needs.DESCRIBE_GROUP: "GROUP_AUTHORIZATION_FAILED for the key",
            needs.DESCRIBE_TRANSACTIONAL_ID: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED for the key",
            needs.CLUSTER_ACTION: "for keys of share groups: CLUSTER_AUTHORIZATION_FAILED",
        }
    ),
    11: ApiRow((_GROUP_READ,)),
    12: ApiRow((_GROUP_READ,)),
    13: ApiRow((_GROUP_READ,)),
    14: ApiRow((_GROUP_READ,)),
    15: ApiRow(items={needs.DESCRIBE_GROUP: "GROUP_AUTHORIZATION_FAILED for the group"}),
    16: ApiRow(
        items={
            needs.DESCRIBE_CLUSTER: "shows all groups; DESCRIBE on a group shows that one",
            needs.DESCRIBE_GROUP: _LEFT_OUT,
        }
    ),
    17: ApiRow(is_open="it is how a client authenticates"),
    18: ApiRow(is_open="clients send it before authentication"),
    19: ApiRow(
        items={
            needs.CREATE_CLUSTER: "creates any topic; CREATE on the topic creates that one",
            needs.CREATE_TOPIC: _TOPIC,
            needs.DESCRIBE_CONFIGS_TOPIC: "TOPIC_AUTHORIZATION_FAILED in place of the topic's configurations",
        }
    ),
    20: ApiRow(
        items={
            needs.DELETE_CLUSTER: "deletes any topic; DELETE on the topic deletes that one",
            needs.DELETE_TOPIC: _TOPIC,
            needs.DESCRIBE_TOPIC: f"{_TOPIC}; a request by id does not reveal the name",
        }
    ),
    21: ApiRow(items={needs.DELETE_TOPIC: _PARTITION}),
    22: ApiRow(
        (_TRANSACTION,),
        {
            needs.IDEMPOTENT_WRITE: "CLUSTER_AUTHORIZATION_FAILED, unless the client may WRITE to any topic",
            needs.WRITE_TOPIC: "on any topic, in place of IDEMPOTENT_WRITE",
        },
    ),
    23: ApiRow(
        items={
            needs.CLUSTER_ACTION: "covers any topic; DESCRIBE on the topic covers that one",
            needs.DESCRIBE_TOPIC: _PARTITION,
        }
    ),
    24: ApiRow(
        (
            Whole(needs.CLUSTER_ACTION, first_version=4),
            Whole(needs.WRITE_TRANSACTIONAL_ID, "v3_and_below_transactional_id", last_version=3),
        ),
        {needs.WRITE_TOPIC: f"{_PARTITION}, OPERATION_NOT_ATTEMPTED for the others; up to version 3"},
    ),
    25: ApiRow((_TRANSACTION, _GROUP_READ)),
    26: ApiRow((_TRANSACTION,)),
    27: ApiRow((Whole(needs.CLUSTER_ACTION, or_need=needs.ALTER_CLUSTER),)),
    28: ApiRow((_TRANSACTION, _GROUP_READ), {needs.READ_TOPIC: _PARTITION}),
    29: _DESCRIBE,
    30: _ALTER,
    31: _ALTER,
    32: ApiRow(items=_CONFIG_READS),
    33: ApiRow(items=_CONFIG_CHANGES),
    34: ApiRow((Whole(needs.ALTER_CLUSTER),)),
    35: _DESCRIBE,
    36: ApiRow(is_open="it is how a client authenticates"),
    37: ApiRow(items={needs.ALTER_TOPIC: _TOPIC}),
    38: _TOKENS,
    39: _TOKENS,
    40: _TOKENS,
    41: _TOKENS,
    42: ApiRow(items={needs.DELETE_GROUP: "GROUP_AUTHORIZATION_FAILED for the group"}),
    43: _ALTER,
    44: ApiRow(
        items={
            **_CONFIG_CHANGES,
            needs.ALTER_CLUSTER: "CLUSTER_AUTHORIZATION_FAILED for `diamant.compact` and `diamant.clock.advance.ms`",
        }
    ),
    45: _ALTER,
    46: _DESCRIBE,
    47: ApiRow((Whole(needs.DELETE_GROUP, "group_id"),), {needs.READ_TOPIC: _PARTITION}),
    48: ApiRow((Whole(needs.DESCRIBE_CONFIGS_CLUSTER),)),
    49: ApiRow((Whole(needs.ALTER_CONFIGS_CLUSTER),)),
    50: _DESCRIBE,
    51: _ALTER,
    55: _DESCRIBE,
    57: _ALTER,
    60: ApiRow(
        items={needs.DESCRIBE_CLUSTER: "no authorized operations of the cluster"},
        is_open="the addresses of the brokers",
    ),
    61: ApiRow(items={needs.READ_TOPIC: _PARTITION}),
    64: _ALTER,
    65: ApiRow(
        items={
            needs.DESCRIBE_TRANSACTIONAL_ID: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED for the transactional id",
            needs.DESCRIBE_TOPIC: _LEFT_OUT,
        }
    ),
    66: ApiRow(items={needs.DESCRIBE_TRANSACTIONAL_ID: _LEFT_OUT}),
    68: ApiRow(
        (_GROUP_READ,),
        {needs.DESCRIBE_TOPIC: "TOPIC_AUTHORIZATION_FAILED for the request; topics matched by a pattern are left out"},
    ),
    69: ApiRow(
        items={
            needs.DESCRIBE_GROUP: "GROUP_AUTHORIZATION_FAILED for the group",
            needs.DESCRIBE_TOPIC: "TOPIC_AUTHORIZATION_FAILED for the group whose members consume the topic",
        }
    ),
    74: ApiRow((Whole(needs.DESCRIBE_CONFIGS_CLUSTER),)),
    75: ApiRow(items={needs.DESCRIBE_TOPIC: f"{_TOPIC}; left out if all topics are requested"}),
}
"""By API key."""
