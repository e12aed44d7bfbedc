"""The table of APIs: their handlers and the handlers' needs. ApiVersions is computed from it.

The first request for an API imports its handler's module and looks up its needs: most brokers serve only a dozen of these
APIs, and importing all of them would slow the start.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from diamant.broker.dispatch.dispatcher import Handler
from diamant.broker.dispatch.services import Services
from diamant.broker.network.api import Api, Decode


class Row(NamedTuple):
    """The module of a handler below `diamant.broker.handlers`, and the first arguments of its `handle`."""

    module: str
    needs: Callable[[Services], tuple[Any, ...]]
    is_audited: bool = False
    """Whether requests are audited: those that need CREATE, DELETE, ALTER or ALTER_CONFIGS."""


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


TABLE: dict[int, Row] = {
    0: Row("data.produce", lambda s: (s.transactions, s.node)),
    1: Row("data.fetch", lambda s: (s.quotas.clients, s.node)),
    2: Row("data.list_offsets", _topics),
    3: Row("topics.metadata", lambda s: (s.quotas.clients, s.audit, s.creation, s.node, s.metadata_cache)),
    8: Row("groups.offset_commit", lambda s: (s.groups(), s.node.topics)),
    9: Row("groups.offset_fetch", lambda s: (s.groups(), s.node.topics)),
    10: Row("groups.find_coordinator", lambda s: (s.creation, s.node)),
    11: Row("groups.join_group", _groups),
    12: Row("groups.heartbeat", _groups),
    13: Row("groups.leave_group", _groups),
    14: Row("groups.sync_group", _groups),
    15: Row("groups.describe_groups", _groups),
    16: Row("groups.list_groups", _groups),
    17: Row("security.sasl_handshake", _nothing),
    18: Row("cluster.api_versions", lambda s: (s.node.metadata, s.api_versions, TABLE)),
    19: Row("topics.create_topics", lambda s: (s.quotas.clients, s.node), is_audited=True),
    20: Row("topics.delete_topics", lambda s: (s.quotas.clients, s.node), is_audited=True),
    21: Row("data.delete_records", _topics, is_audited=True),
    22: Row("transactions.init_producer_id", lambda s: (s.transactions, s.node.producer_ids)),
    23: Row("data.offset_for_leader_epoch", _topics),
    24: Row("transactions.add_partitions_to_txn", lambda s: (s.transactions(), s.node.topics)),
    25: Row("transactions.add_offsets_to_txn", lambda s: (s.groups(), s.transactions())),
    26: Row("transactions.end_txn", _transactions),
    27: Row("transactions.write_txn_markers", lambda s: (s.groups, s.node), is_audited=True),
    28: Row("transactions.txn_offset_commit", lambda s: (s.groups(), s.transactions(), s.node)),
    29: Row("security.describe_acls", lambda s: (s.node.acls,)),
    30: Row("security.create_acls", lambda s: (s.node.acls, s.node.topics), is_audited=True),
    31: Row("security.delete_acls", lambda s: (s.node.acls, s.node.topics), is_audited=True),
    32: Row("configs.describe_configs", lambda s: (s.node, s.compactions)),
    33: Row("configs.alter_configs", _node, is_audited=True),
    34: Row("data.alter_replica_log_dirs", _node, is_audited=True),
    35: Row("data.describe_log_dirs", _node),
    36: Row("security.sasl_authenticate", _nothing),
    37: Row("topics.create_partitions", lambda s: (s.quotas.clients, s.node.topics), is_audited=True),
    38: Row("security.create_delegation_token", _nothing),
    39: Row("security.renew_delegation_token", _nothing),
    40: Row("security.expire_delegation_token", _nothing),
    41: Row("security.describe_delegation_token", _nothing),
    42: Row("groups.delete_groups", _groups, is_audited=True),
    43: Row("topics.elect_leaders", _topics, is_audited=True),
    44: Row("configs.incremental_alter_configs", lambda s: (s.compact_by_config, s.clock, s.node), is_audited=True),
    45: Row("topics.alter_partition_reassignments", _topics, is_audited=True),
    46: Row("topics.list_partition_reassignments", _nothing),
    47: Row("groups.offset_delete", lambda s: (s.groups(), s.node.topics), is_audited=True),
    48: Row("configs.describe_client_quotas", _metadata),
    49: Row("configs.alter_client_quotas", lambda s: (s.quotas.apply, s.node), is_audited=True),
    50: Row("security.describe_user_scram_credentials", _metadata),
    51: Row("security.alter_user_scram_credentials", _node, is_audited=True),
    55: Row("cluster.describe_quorum", _node),
    57: Row("cluster.update_features", lambda s: (s.node, s.api_versions), is_audited=True),
    60: Row("cluster.describe_cluster", _node),
    61: Row("data.describe_producers", _topics),
    64: Row("cluster.unregister_broker", _node, is_audited=True),
    65: Row("transactions.describe_transactions", _transactions),
    66: Row("transactions.list_transactions", lambda s: (s.transactions(), s.node.env.clock)),
    68: Row("groups.consumer_group_heartbeat", _groups),
    69: Row("groups.consumer_group_describe", _groups),
    74: Row("configs.list_config_resources", _node),
    75: Row("topics.describe_topic_partitions", _node),
}
"""By API key."""


def api_of(key: int) -> Api:
    """Return the API of a row, with its decoder. KeyError for other keys."""
    api: Api = importlib.import_module(f"diamant.broker.handlers.{TABLE[key].module}").API
    return api


def load(services: Services, key: int) -> tuple[Decode, Handler]:
    """Return the decoder of an API, and its handler with its needs bound; guarded if there is an authorizer, and
    audited if its row says so.

    KeyError if it is not served.
    """
    api = api_of(key)
    decode, handle = api.decode, cast(Handler, partial(api.handle, *TABLE[key].needs(services)))
    if services.node.authorizer is not None:
        from diamant.broker.dispatch.guard import guarded

        decode, handle = guarded(key, services.node.authorizer, decode, handle)
    if TABLE[key].is_audited:
        from diamant.broker.dispatch.audited import audited

        handle = audited(key, services.audit(), handle)
    return decode, handle
