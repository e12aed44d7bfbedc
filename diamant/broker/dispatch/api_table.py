"""The table of Kafka's APIs: one row for each API that the broker serves. ApiVersions is computed from it.

The first request for an API imports its handler's module and looks up its dependencies: most brokers serve only a dozen of these
APIs, and importing all of them would slow the start.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from diamant.broker.dispatch import audit_subjects as subjects
from diamant.broker.dispatch.api_row import Audit, Row, Whole
from diamant.broker.dispatch.dispatcher import Handler
from diamant.broker.dispatch.services import Services
from diamant.broker.network.api import Answer, Decode, Handle, Response, ResponseFields
from diamant.broker.security.authorization import permissions
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.error_shape import ErrorShape, Mirror, Refusal
from diamant.protocol.wire.schemas import decode_request, encode_response_fields


def _nothing(_services: Services) -> tuple[Any, ...]:
    return ()


def _node(services: Services) -> tuple[Any, ...]:
    return (services.node,)


def _topics(services: Services) -> tuple[Any, ...]:
    return (services.node.topics,)


def _metadata(services: Services) -> tuple[Any, ...]:
    return (services.node.metadata,)


def _groups(services: Services) -> tuple[Any, ...]:
    return (services.groups(),)


def _transactions(services: Services) -> tuple[Any, ...]:
    return (services.transactions(),)


# Permissions, and responses to a denial
_PARTITION = "TOPIC_AUTHORIZATION_FAILED for each partition"
_TOPIC = "TOPIC_AUTHORIZATION_FAILED for the topic"
_LEFT_OUT = "left out"
_RESOURCE = "the error code of the resource type, for the resource"
_OF_CLUSTER = f"{_RESOURCE}; brokers, their loggers and client metrics belong to the cluster"
_GROUP = "GROUP_AUTHORIZATION_FAILED for the group"
_GROUP_READ = Whole(permissions.READ_GROUP, "group_id")
_TRANSACTION = Whole(permissions.WRITE_TRANSACTIONAL_ID, "transactional_id")
_ALTER = (Whole(permissions.ALTER_CLUSTER),)
_DESCRIBE = (Whole(permissions.DESCRIBE_CLUSTER),)
_AUTHENTICATES = "it is how a client authenticates"
_CONFIG_READS = {
    permissions.DESCRIBE_CONFIGS_TOPIC: _RESOURCE,
    permissions.DESCRIBE_CONFIGS_GROUP: _RESOURCE,
    permissions.DESCRIBE_CONFIGS_CLUSTER: _OF_CLUSTER,
}
_CONFIG_CHANGES = {
    permissions.ALTER_CONFIGS_TOPIC: _RESOURCE,
    permissions.ALTER_CONFIGS_GROUP: _RESOURCE,
    permissions.ALTER_CONFIGS_CLUSTER: _OF_CLUSTER,
}
_TOKENS = Row(
    "security.delegation_tokens", _nothing, is_open="delegation tokens are not supported, and every request is refused"
)

# Shapes of errors
_PARTITIONS = (Mirror("partitions", "partitions"),)
_INDEXES = (Mirror("partition_indexes", "partitions"),)
_BY_PARTITION = (Mirror("partitions", "results_by_partition"),)
_TOPIC_PARTITIONS = (Mirror("topics", "topics", _PARTITIONS),)
_TOPIC_INDEXES = Mirror("topics", "topics", _INDEXES)
_OF_GROUP = ErrorShape(is_of_coordinator=True)
_SESSION_CODES = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_SHARE_CODES = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
_OFFSET_CODES = frozenset(
    {
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    }
)
_MEMBER_CODES = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
_ALL_OUTERMOST: frozenset[ErrorCode] = frozenset()
_STATES = ErrorShape((Mirror("topics", "results", _PARTITIONS),))
_OF_BROKERS = (Whole(permissions.CLUSTER_ACTION),)
_ON_TOP_TOO = Refusal(is_on_top_too=True)


TABLE: dict[int, Row] = {
    0: Row(
        "data.produce",
        lambda s: (s.transactions, s.node),
        items={
            permissions.WRITE_TOPIC: _PARTITION,
            permissions.WRITE_TRANSACTIONAL_ID: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED for each partition, "
            "if a batch is transactional",
        },
        errors=ErrorShape((Mirror("topic_data", "responses", (Mirror("partition_data", "partition_responses"),)),)),
    ),
    1: Row(
        "data.fetch",
        lambda s: (s.quotas.clients, s.node),
        items={
            permissions.READ_TOPIC: _PARTITION,
            permissions.CLUSTER_ACTION: f"for followers in place of READ: {_PARTITION}",
        },
        errors=ErrorShape((Mirror("topics", "responses", _PARTITIONS),), outermost=_SESSION_CODES, refusal=_ON_TOP_TOO),
    ),
    2: Row(
        "data.list_offsets",
        _topics,
        items={permissions.DESCRIBE_TOPIC: _PARTITION},
        errors=ErrorShape(_TOPIC_PARTITIONS),
    ),
    3: Row(
        "topics.metadata",
        lambda s: (s.quotas.clients, s.audit, s.creation, s.node, s.metadata_cache),
        items={
            permissions.DESCRIBE_TOPIC: f"{_TOPIC}; left out if all topics are requested",
            permissions.CREATE_CLUSTER: "to create a topic automatically; CREATE on the topic is enough",
            permissions.CREATE_TOPIC: f"to create it automatically: {_TOPIC}",
            permissions.DESCRIBE_CLUSTER: "no authorized operations of the cluster",
        },
        is_open="the addresses of the brokers",
        errors=ErrorShape(
            (Mirror("topics", "topics"),), adds_partitions=True, outermost=frozenset({ErrorCode.REBOOTSTRAP_REQUIRED})
        ),
    ),
    8: Row(
        "groups.offset_commit",
        lambda s: (s.groups(), s.node.topics),
        whole=(_GROUP_READ,),
        items={permissions.READ_TOPIC: _PARTITION},
        errors=ErrorShape(_TOPIC_PARTITIONS, is_of_coordinator=True),
        coordinator=GROUP_OFFSETS_TOPIC,
    ),
    9: Row(
        "groups.offset_fetch",
        lambda s: (s.groups(), s.node.topics),
        items={
            permissions.DESCRIBE_GROUP: _GROUP,
            permissions.DESCRIBE_TOPIC: f"{_PARTITION}; left out if all topics are requested",
        },
        errors=ErrorShape(
            (Mirror("groups", "groups", (_TOPIC_INDEXES,)), _TOPIC_INDEXES),
            is_of_coordinator=True,
            innermost=_OFFSET_CODES,
        ),
        coordinator=GROUP_OFFSETS_TOPIC,
    ),
    10: Row(
        "groups.find_coordinator",
        lambda s: (s.creation, s.node),
        items={
            permissions.DESCRIBE_GROUP: "GROUP_AUTHORIZATION_FAILED for the key",
            permissions.DESCRIBE_TRANSACTIONAL_ID: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED for the key",
            permissions.CLUSTER_ACTION: "for keys of share groups: CLUSTER_AUTHORIZATION_FAILED",
        },
        errors=ErrorShape((Mirror("coordinator_keys", "coordinators"),), names_topics=False),
    ),
    11: Row(
        "groups.join_group",
        _groups,
        whole=(_GROUP_READ,),
        errors=ErrorShape(
            is_of_coordinator=True, repeated=("member_id",), refusal=Refusal(7, fields={"protocol_name": None})
        ),
        coordinator=GROUP_OFFSETS_TOPIC,
    ),
    12: Row(
        "groups.heartbeat",
        _groups,
        whole=(_GROUP_READ,),
        errors=_OF_GROUP,
        coordinator=GROUP_OFFSETS_TOPIC,
    ),
    13: Row(
        "groups.leave_group",
        _groups,
        whole=(_GROUP_READ,),
        errors=ErrorShape(
            (Mirror("members", "members"),), names_topics=False, is_of_coordinator=True, innermost=_MEMBER_CODES
        ),
        coordinator=GROUP_OFFSETS_TOPIC,
    ),
    14: Row(
        "groups.sync_group",
        _groups,
        whole=(_GROUP_READ,),
        errors=_OF_GROUP,
        coordinator=GROUP_OFFSETS_TOPIC,
    ),
    15: Row(
        "groups.describe_groups",
        _groups,
        items={permissions.DESCRIBE_GROUP: _GROUP},
        errors=ErrorShape((Mirror("groups", "groups"),), names_topics=False, is_of_coordinator=True),
    ),
    16: Row(
        "groups.list_groups",
        _groups,
        items={
            permissions.DESCRIBE_CLUSTER: "shows all groups; DESCRIBE on a group shows that one",
            permissions.DESCRIBE_GROUP: _LEFT_OUT,
        },
        errors=_OF_GROUP,
    ),
    17: Row("security.sasl:handshake", _nothing, is_open=_AUTHENTICATES),
    18: Row(
        "cluster.api_versions",
        lambda s: (s.node.metadata, s.api_versions, TABLE),
        is_open="clients send it before authentication",
    ),
    19: Row(
        "topics.create_topics:create",
        lambda s: (s.quotas.clients, s.node),
        items={
            permissions.CREATE_CLUSTER: "creates any topic; CREATE on the topic creates that one",
            permissions.CREATE_TOPIC: _TOPIC,
            permissions.DESCRIBE_CONFIGS_TOPIC: "TOPIC_AUTHORIZATION_FAILED in place of the topic's configurations",
        },
        errors=ErrorShape((Mirror("topics", "topics"),)),
        audit=Audit(subjects.topics),
    ),
    20: Row(
        "topics.delete_topics",
        lambda s: (s.quotas.clients, s.node),
        items={
            permissions.DELETE_CLUSTER: "deletes any topic; DELETE on the topic deletes that one",
            permissions.DELETE_TOPIC: _TOPIC,
            permissions.DESCRIBE_TOPIC: f"{_TOPIC}; a request by id does not reveal the name",
        },
        errors=ErrorShape((Mirror("topics", "responses"), Mirror("topic_names", "responses"))),
        audit=Audit(subjects.topics),
    ),
    21: Row(
        "data.delete_records",
        _topics,
        items={permissions.DELETE_TOPIC: _PARTITION},
        errors=ErrorShape(_TOPIC_PARTITIONS),
        audit=Audit(subjects.topics),
    ),
    22: Row(
        "transactions.producer_requests:init_producer_id",
        lambda s: (s.transactions, s.node.producer_ids),
        whole=(_TRANSACTION,),
        items={
            permissions.IDEMPOTENT_WRITE: "CLUSTER_AUTHORIZATION_FAILED, unless the client may WRITE to any topic",
            permissions.WRITE_TOPIC: "on any topic, in place of IDEMPOTENT_WRITE",
        },
        errors=_OF_GROUP,
        coordinator=TRANSACTION_STATE_TOPIC,
    ),
    23: Row(
        "data.offset_for_leader_epoch",
        _topics,
        items={
            permissions.CLUSTER_ACTION: "covers any topic; DESCRIBE on the topic covers that one",
            permissions.DESCRIBE_TOPIC: _PARTITION,
        },
        errors=ErrorShape(_TOPIC_PARTITIONS),
    ),
    24: Row(
        "transactions.producer_requests:add_partitions",
        lambda s: (s.transactions(), s.node.topics),
        whole=(
            Whole(permissions.CLUSTER_ACTION, first_version=4),
            Whole(permissions.WRITE_TRANSACTIONAL_ID, "v3_and_below_transactional_id", last_version=3),
        ),
        items={permissions.WRITE_TOPIC: f"{_PARTITION}, OPERATION_NOT_ATTEMPTED for the others; up to version 3"},
        errors=ErrorShape(
            (
                Mirror("transactions", "results_by_transaction", (Mirror("topics", "topic_results", _BY_PARTITION),)),
                Mirror("v3_and_below_topics", "results_by_topic_v3_and_below", _BY_PARTITION),
            ),
            is_of_coordinator=True,
            refusal=Refusal(4, is_only_on_top=True),
        ),
        coordinator=TRANSACTION_STATE_TOPIC,
    ),
    25: Row(
        "transactions.producer_requests:add_offsets",
        lambda s: (s.groups(), s.transactions()),
        whole=(_TRANSACTION, _GROUP_READ),
        errors=_OF_GROUP,
        coordinator=TRANSACTION_STATE_TOPIC,
    ),
    26: Row(
        "transactions.producer_requests:end_transaction",
        _transactions,
        whole=(_TRANSACTION,),
        errors=_OF_GROUP,
        coordinator=TRANSACTION_STATE_TOPIC,
    ),
    27: Row(
        "transactions.write_txn_markers",
        lambda s: (s.groups, s.node),
        whole=(Whole(permissions.CLUSTER_ACTION, or_permission=permissions.ALTER_CLUSTER),),
        errors=ErrorShape((Mirror("markers", "markers", (_TOPIC_INDEXES,)),)),
        audit=Audit(subjects.topics),
    ),
    28: Row(
        "transactions.txn_offset_commit",
        lambda s: (s.groups(), s.transactions(), s.node),
        whole=(_TRANSACTION, _GROUP_READ),
        items={permissions.READ_TOPIC: _PARTITION},
        errors=ErrorShape(_TOPIC_PARTITIONS, is_of_coordinator=True),
        coordinator=GROUP_OFFSETS_TOPIC,
    ),
    29: Row("security.acls:describe", lambda s: (s.node.acls,), whole=_DESCRIBE),
    30: Row(
        "security.acls:create",
        lambda s: (s.node.acls, s.node.topics),
        whole=_ALTER,
        errors=ErrorShape((Mirror("creations", "results"),), names_topics=False),
        audit=Audit(subjects.acl, is_of_request=True),
    ),
    31: Row(
        "security.acls:delete",
        lambda s: (s.node.acls, s.node.topics),
        whole=_ALTER,
        errors=ErrorShape((Mirror("filters", "filter_results"),), names_topics=False),
        audit=Audit(subjects.acl, is_of_request=True),
    ),
    32: Row(
        "configs.describe_configs",
        lambda s: (s.node, s.compactions),
        items=_CONFIG_READS,
        errors=ErrorShape((Mirror("resources", "results"),)),
    ),
    33: Row(
        "configs.alter_configs:alter",
        _node,
        items=_CONFIG_CHANGES,
        errors=ErrorShape((Mirror("resources", "responses"),)),
        audit=Audit(subjects.resource, is_of_request=True),
    ),
    34: Row(
        "data.log_dirs:alter",
        _node,
        whole=_ALTER,
        errors=ErrorShape((Mirror("dirs", "", (Mirror("topics", "results", _PARTITIONS),)),)),
        audit=Audit(subjects.topics),
    ),
    35: Row(
        "data.log_dirs:describe",
        _node,
        whole=_DESCRIBE,
        errors=ErrorShape(innermost=_ALL_OUTERMOST, sole_array="results", refusal=Refusal(is_only_on_top=True)),
    ),
    36: Row("security.sasl:authenticate", _nothing, is_open=_AUTHENTICATES),
    37: Row(
        "topics.create_topics:grow",
        lambda s: (s.quotas.clients, s.node.topics),
        items={permissions.ALTER_TOPIC: _TOPIC},
        errors=ErrorShape((Mirror("topics", "results"),)),
        audit=Audit(subjects.topics),
    ),
    38: _TOKENS,
    39: _TOKENS,
    40: _TOKENS,
    41: _TOKENS,
    42: Row(
        "groups.delete_groups",
        _groups,
        items={permissions.DELETE_GROUP: _GROUP},
        errors=ErrorShape((Mirror("groups_names", "results"),), names_topics=False, is_of_coordinator=True),
        audit=Audit(subjects.group),
    ),
    43: Row(
        "topics.elect_leaders",
        _topics,
        whole=_ALTER,
        errors=ErrorShape(
            (Mirror("topic_partitions", "replica_election_results", (Mirror("partitions", "partition_result"),)),),
            refusal=_ON_TOP_TOO,
        ),
        audit=Audit(subjects.topics),
    ),
    44: Row(
        "configs.alter_configs:alter_incrementally",
        lambda s: (s.compact_by_config, s.clock, s.node),
        items={
            **_CONFIG_CHANGES,
            permissions.ALTER_CLUSTER: "CLUSTER_AUTHORIZATION_FAILED for `diamant.compact` and `diamant.clock.advance.ms`",
        },
        errors=ErrorShape((Mirror("resources", "responses"),)),
        audit=Audit(subjects.resource, is_of_request=True),
    ),
    45: Row(
        "topics.partition_reassignments:alter",
        _topics,
        whole=_ALTER,
        errors=ErrorShape((Mirror("topics", "responses", _PARTITIONS),), refusal=_ON_TOP_TOO),
        audit=Audit(subjects.topics),
    ),
    46: Row("topics.partition_reassignments:list_all", _nothing, whole=_DESCRIBE),
    47: Row(
        "groups.offset_delete",
        lambda s: (s.groups(), s.node.topics),
        whole=(Whole(permissions.DELETE_GROUP, "group_id"),),
        items={permissions.READ_TOPIC: _PARTITION},
        errors=ErrorShape(_TOPIC_PARTITIONS, is_of_coordinator=True, innermost=_OFFSET_CODES),
        audit=Audit(subjects.topics),
        coordinator=GROUP_OFFSETS_TOPIC,
    ),
    48: Row(
        "configs.client_quotas:describe",
        _metadata,
        whole=(Whole(permissions.DESCRIBE_CONFIGS_CLUSTER),),
        errors=ErrorShape(refusal=Refusal(fields={"entries": None})),
    ),
    49: Row(
        "configs.client_quotas:alter",
        lambda s: (s.quotas.apply, s.node),
        whole=(Whole(permissions.ALTER_CONFIGS_CLUSTER),),
        errors=ErrorShape((Mirror("entries", "entries"),), names_topics=False),
        audit=Audit(subjects.entity),
    ),
    50: Row(
        "security.scram_credentials:describe",
        _metadata,
        whole=_DESCRIBE,
        errors=ErrorShape(
            (Mirror("users", "results"),),
            names_topics=False,
            innermost=_ALL_OUTERMOST,
            refusal=Refusal(
                fields={"results": [{"user": "", "error_code": int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)}]}
            ),
        ),
    ),
    51: Row(
        "security.scram_credentials:alter",
        _node,
        whole=_ALTER,
        errors=ErrorShape((Mirror("deletions", "results"), Mirror("upsertions", "results")), names_topics=False),
        audit=Audit(subjects.user),
    ),
    55: Row(
        "cluster.describe_quorum", _node, whole=_DESCRIBE, errors=ErrorShape(_TOPIC_PARTITIONS, innermost=_OFFSET_CODES)
    ),
    57: Row(
        "cluster.update_features",
        lambda s: (s.node, s.api_versions),
        whole=_ALTER,
        errors=ErrorShape((Mirror("feature_updates", "results"),), names_topics=False, innermost=_ALL_OUTERMOST),
        audit=Audit(subjects.feature),
    ),
    60: Row(
        "cluster.describe_cluster",
        _node,
        items={permissions.DESCRIBE_CLUSTER: "no authorized operations of the cluster"},
        is_open="the addresses of the brokers",
    ),
    61: Row(
        "data.describe_producers",
        _topics,
        items={permissions.READ_TOPIC: _PARTITION},
        errors=ErrorShape((_TOPIC_INDEXES,)),
    ),
    64: Row("cluster.unregister_broker", _node, whole=_ALTER, audit=Audit(subjects.topics)),
    65: Row(
        "transactions.transaction_list:describe",
        _transactions,
        items={
            permissions.DESCRIBE_TRANSACTIONAL_ID: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED for the transactional id",
            permissions.DESCRIBE_TOPIC: _LEFT_OUT,
        },
        errors=ErrorShape(
            (Mirror("transactional_ids", "transaction_states"),), names_topics=False, is_of_coordinator=True
        ),
    ),
    66: Row(
        "transactions.transaction_list:list_all",
        lambda s: (s.transactions(), s.node.env.clock),
        items={permissions.DESCRIBE_TRANSACTIONAL_ID: _LEFT_OUT},
        errors=_OF_GROUP,
    ),
    68: Row(
        "groups.consumer_group_heartbeat",
        _groups,
        whole=(_GROUP_READ,),
        items={
            permissions.DESCRIBE_TOPIC: "TOPIC_AUTHORIZATION_FAILED for the request; topics matched by a pattern are left out"
        },
        errors=_OF_GROUP,
        coordinator=GROUP_OFFSETS_TOPIC,
    ),
    69: Row(
        "groups.group_descriptions:describe_consumer_groups",
        _groups,
        items={
            permissions.DESCRIBE_GROUP: _GROUP,
            permissions.DESCRIBE_TOPIC: "TOPIC_AUTHORIZATION_FAILED for the group whose members consume the topic",
        },
        errors=ErrorShape((Mirror("group_ids", "groups"),), names_topics=False, is_of_coordinator=True),
    ),
    74: Row("configs.list_config_resources", _node, whole=(Whole(permissions.DESCRIBE_CONFIGS_CLUSTER),)),
    75: Row(
        "topics.describe_topic_partitions",
        _node,
        items={permissions.DESCRIBE_TOPIC: f"{_TOPIC}; left out if all topics are requested"},
        errors=ErrorShape((Mirror("topics", "topics"),), adds_partitions=True),
    ),
    76: Row(
        "share.share_group_heartbeat",
        _groups,
        whole=(_GROUP_READ,),
        items={permissions.DESCRIBE_TOPIC: "TOPIC_AUTHORIZATION_FAILED for the request"},
        errors=_OF_GROUP,
        coordinator=GROUP_OFFSETS_TOPIC,
    ),
    77: Row(
        "groups.group_descriptions:describe_share_groups",
        _groups,
        items={
            permissions.DESCRIBE_GROUP: _GROUP,
            permissions.DESCRIBE_TOPIC: "TOPIC_AUTHORIZATION_FAILED for the group whose members consume the topic",
        },
        errors=ErrorShape((Mirror("group_ids", "groups"),), names_topics=False, is_of_coordinator=True),
    ),
    78: Row(
        "share.share_fetch",
        lambda s: (s.groups(), s.node),
        whole=(_GROUP_READ,),
        items={permissions.READ_TOPIC: _PARTITION},
        errors=ErrorShape((Mirror("topics", "responses", _PARTITIONS),), outermost=_SHARE_CODES, refusal=_ON_TOP_TOO),
    ),
    79: Row(
        "share.share_acknowledge",
        lambda s: (s.groups(), s.node.topics),
        whole=(_GROUP_READ,),
        items={permissions.READ_TOPIC: _PARTITION},
        errors=ErrorShape((Mirror("topics", "responses", _PARTITIONS),), outermost=_SHARE_CODES, refusal=_ON_TOP_TOO),
    ),
    83: Row(
        "share.share_group_state:initialize",
        _groups,
        whole=_OF_BROKERS,
        errors=_STATES,
    ),
    84: Row(
        "share.share_group_state:read",
        _groups,
        whole=_OF_BROKERS,
        errors=_STATES,
    ),
    85: Row(
        "share.share_group_state:write",
        _groups,
        whole=_OF_BROKERS,
        errors=_STATES,
    ),
    86: Row(
        "share.share_group_state:delete",
        _groups,
        whole=_OF_BROKERS,
        errors=_STATES,
    ),
    87: Row(
        "share.share_group_state:read_summary",
        _groups,
        whole=_OF_BROKERS,
        errors=_STATES,
    ),
    90: Row(
        "share.share_group_offsets:describe",
        lambda s: (s.groups(), s.node.topics),
        items={
            permissions.DESCRIBE_GROUP: _GROUP,
            permissions.DESCRIBE_TOPIC: f"{_TOPIC}; left out if all topics are requested",
        },
        errors=ErrorShape((Mirror("groups", "groups"),), names_topics=False, is_of_coordinator=True),
    ),
    91: Row(
        "share.share_group_offsets:alter",
        lambda s: (s.groups(), s.node.topics),
        whole=(_GROUP_READ,),
        items={permissions.READ_TOPIC: _TOPIC},
        errors=ErrorShape(
            (Mirror("topics", "responses", _PARTITIONS),), is_of_coordinator=True, refusal=Refusal(is_only_on_top=True)
        ),
        coordinator=GROUP_OFFSETS_TOPIC,
    ),
    92: Row(
        "share.share_group_offsets:delete",
        lambda s: (s.groups(), s.node.topics),
        whole=(Whole(permissions.DELETE_GROUP, "group_id"),),
        items={permissions.READ_TOPIC: _TOPIC},
        errors=ErrorShape(
            (Mirror("topics", "responses"),), is_of_coordinator=True, refusal=Refusal(is_only_on_top=True)
        ),
        audit=Audit(subjects.topics),
        coordinator=GROUP_OFFSETS_TOPIC,
    ),
}
"""The rows by API key."""

ERRORS: dict[int, ErrorShape] = {key: row.errors for key, row in TABLE.items()}
"""The shape of each API's errors, by API key."""


def functions(key: int) -> tuple[Decode, Handle]:
    """Import an API's module and return its decoder and handler. Raises KeyError if the API is not served."""
    name, _, function = TABLE[key].module.partition(":")
    module = importlib.import_module(f"diamant.broker.handlers.{name}")
    handle = getattr(module, "handle", None) or encoding(key, getattr(module, function or "answer"))
    return getattr(module, "decode", None) or partial(decode_request, key), handle


def encoding(key: int, answer: Callable[..., Response]) -> Handle:
    """Wrap a function that returns the fields of an API's response into a handler, which encodes them."""

    def handle(*given: Any) -> Answer:
        version, response = given[-2].api_version, answer(*given)
        if asyncio.iscoroutine(response):
            return later(version, response)
        return encode_response_fields(key, version, response)

    async def later(version: int, response: Awaitable[ResponseFields]) -> bytes:
        return encode_response_fields(key, version, await response)

    return handle


def load(services: Services, key: int) -> tuple[Decode, Handler]:
    """Return an API's decoder and its handler, with dependencies bound. The handler is preceded by a permission check if there
    is an authorizer and by a coordinator check if there are several brokers; it is audited if its row says so.

    Raises KeyError if the API is not served.
    """
    row = TABLE[key]
    decode, unbound = functions(key)
    handle = cast(Handler, partial(unbound, *row.dependencies(services)))
    if services.node.authorizer is not None:
        from diamant.broker.dispatch.guard import guarded

        decode, handle = guarded(key, row, services.node.authorizer, decode, handle)
    if row.audit is not None:
        from diamant.broker.dispatch.audited import audited

        handle = audited(key, row, services.audit(), handle)
    if services.node.topics.brokers is not None:
        from diamant.broker.dispatch.coordinator_check import checked

        decode, handle = checked(key, row, services.node.topics.brokers, services, decode, handle)
    return decode, handle
