"""The needs of Diamant's own verbs, as Kafka operations: for HTTP, and for configurations that act as verbs.

Verbs that change the whole broker need ALTER on the cluster. Showing keys or values needs READ on the topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from diamant.broker.security.authorization import needs
from diamant.broker.security.authorization.needs import Need

VERB_NEEDS: Mapping[str, tuple[Need, ...]] = MappingProxyType(
    {
        "compact": (needs.ALTER_CLUSTER,),
        "clock": (needs.DESCRIBE_CLUSTER,),
        "set clock": (needs.ALTER_CLUSTER,),
        "faults": (needs.ALTER_CLUSTER,),
        "snapshot": (needs.ALTER_CLUSTER,),
        "reset": (needs.ALTER_CLUSTER,),
        "cancel": (needs.ALTER_CLUSTER,),
        "status": (needs.DESCRIBE_CLUSTER,),
        "history": (needs.DESCRIBE_CLUSTER,),
        "metrics": (needs.DESCRIBE_CLUSTER,),
        "certificates": (needs.DESCRIBE_CLUSTER,),
        "verify": (needs.DESCRIBE_CLUSTER,),
        "verify keys": (needs.ALTER_CLUSTER,),  # tests guesses of erased keys, from any topic
        "job": (needs.ALTER_CLUSTER,),  # jobs of others: the owner of a job may see and end it
        "group": (needs.DESCRIBE_GROUP,),
        "reset offsets": (needs.READ_GROUP, needs.READ_TOPIC),
        "configs": (needs.DESCRIBE_CONFIGS_TOPIC,),
        "set configs": (needs.ALTER_CONFIGS_TOPIC,),
        "explain": (needs.DESCRIBE_TOPIC,),
        "explain keys": (needs.READ_TOPIC,),
        "count": (needs.DESCRIBE_TOPIC,),
        "latest": (needs.READ_TOPIC,),
        "records": (needs.READ_TOPIC,),
        "produce": (needs.WRITE_TOPIC,),
        "erase": (needs.DELETE_TOPIC,),
        "erase now": (needs.DELETE_TOPIC, needs.ALTER_CLUSTER),
        "redact": (needs.DELETE_TOPIC,),
        "redact now": (needs.DELETE_TOPIC, needs.ALTER_CLUSTER),
    }
)
"""The needs of each verb. All must be met; needs on topics are checked for each topic of the request."""
