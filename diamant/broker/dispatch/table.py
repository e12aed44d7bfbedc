"""The handlers, one file per API, and the explicit table of them from which ApiVersions is computed.

A handler's module is imported with the first request for it: most brokers serve a dozen of these APIs in their life, and
importing all of them would be a good part of the start.
"""

from __future__ import annotations

import importlib

from diamant.broker.network.api import Api

MODULES: dict[int, str] = {
    0: "data.produce",
    1: "data.fetch",
    2: "data.list_offsets",
    3: "topics.metadata",
    8: "groups.offset_commit",
    9: "groups.offset_fetch",
    10: "groups.find_coordinator",
    11: "groups.join_group",
    12: "groups.heartbeat",
    13: "groups.leave_group",
    14: "groups.sync_group",
    15: "groups.describe_groups",
    16: "groups.list_groups",
    18: "cluster.api_versions",
    19: "topics.create_topics",
    20: "topics.delete_topics",
    21: "data.delete_records",
    22: "transactions.init_producer_id",
    23: "data.offset_for_leader_epoch",
    24: "transactions.add_partitions_to_txn",
    25: "transactions.add_offsets_to_txn",
    26: "transactions.end_txn",
    27: "transactions.write_txn_markers",
    28: "transactions.txn_offset_commit",
    29: "security.describe_acls",
    30: "security.create_acls",
    31: "security.delete_acls",
    32: "configs.describe_configs",
    33: "configs.alter_configs",
    34: "data.alter_replica_log_dirs",
    35: "data.describe_log_dirs",
    37: "topics.create_partitions",
    42: "groups.delete_groups",
    38: "security.create_delegation_token",
    39: "security.renew_delegation_token",
    40: "security.expire_delegation_token",
    41: "security.describe_delegation_token",
    43: "topics.elect_leaders",
    44: "configs.incremental_alter_configs",
    47: "groups.offset_delete",
    45: "topics.alter_partition_reassignments",
    46: "topics.list_partition_reassignments",
    48: "configs.describe_client_quotas",
    49: "configs.alter_client_quotas",
    50: "security.describe_user_scram_credentials",
    51: "security.alter_user_scram_credentials",
    55: "cluster.describe_quorum",
    57: "cluster.update_features",
    60: "cluster.describe_cluster",
    61: "data.describe_producers",
    65: "transactions.describe_transactions",
    66: "transactions.list_transactions",
    68: "groups.consumer_group_heartbeat",
    69: "groups.consumer_group_describe",
    64: "cluster.unregister_broker",
    74: "configs.list_config_resources",
    75: "topics.describe_topic_partitions",
}
"""API key to the module that answers it."""


def load_api(key: int) -> Api:
    """The handler of an API in `MODULES`; KeyError for others."""
    api: Api = importlib.import_module(f"diamant.broker.handlers.{MODULES[key]}").API
    return api
