"""The handlers, one file per API, and the explicit table of them from which ApiVersions is computed.

A handler's module is imported with the first request for it: most brokers serve a dozen of these APIs in their life, and
importing all of them would be a good part of the start.
"""

from __future__ import annotations

import importlib

from diamant.broker.dispatch import Api

MODULES: dict[int, str] = {
    0: "produce",
    1: "fetch",
    2: "list_offsets",
    3: "metadata",
    10: "find_coordinator",
    18: "api_versions",
    19: "create_topics",
    20: "delete_topics",
    21: "delete_records",
    22: "init_producer_id",
    23: "offset_for_leader_epoch",
    32: "describe_configs",
    33: "alter_configs",
    35: "describe_log_dirs",
    37: "create_partitions",
    44: "incremental_alter_configs",
    60: "describe_cluster",
}
"""API key to the module that answers it."""


def load_api(key: int) -> Api:
    """The handler of an API in `MODULES`; KeyError for others."""
    api: Api = importlib.import_module(f"{__name__}.{MODULES[key]}").API
    return api
