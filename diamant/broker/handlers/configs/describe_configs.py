"""DescribeConfigs (key 32), versions 1 to 4: configurations of topics, the broker, its loggers, groups and client metrics,
with their sources.

Versions: 3 adds types and documentation (KIP-569).
Deviations: compacted topics have additional read-only entries; `diamant.describe=false` hides them (`topic_figures.py`). The
broker has additional entries for its HTTP address and its manual clock.

Source: ConfigHelper.describeConfigs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from diamant.broker.config.virtual_topic_table import ROWS
from diamant.broker.handlers.configs.changes import describe_configs
from diamant.broker.handlers.configs.config_access import TO_READ, check_resource_access
from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.broker.network.turns import in_slices
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import Access
from diamant.protocol.kraft.records import TOPIC_RESOURCE
from diamant.protocol.wire.schemas import element_encoder, encode_around, encode_response_fields
from diamant.storage.config_key import DescribedConfig

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest

    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.operations.compactions.compactions import Compactions
    from diamant.broker.operations.compactions.topic_figures import TopicFigures

KEY = 32
MAX_AT_ONCE = 8
"""The maximum number of resources described in one turn of the loop. Each takes up to three milliseconds."""
MAX_JOINED_BYTES = 1 << 20
"""Responses up to this size are joined into one buffer, so that metrics count their error codes. 100 MB would take 200 ms."""


def handle(
    node: Node, compactions: Lazy[Compactions], context: RequestContext, request: DescribeConfigsRequest
) -> Answer:
    """Describe each resource separately. If there are many, or a topic's figures are included, let other tasks run in between."""
    if len(request.resources) > MAX_AT_ONCE or any(
        _shows_figures(node, context.access, resource) for resource in request.resources
    ):
        return _in_slices(node, compactions, context, request)
    results = [_describe(node, context, request, resource) for resource in request.resources]
    return encode_response_fields(KEY, context.api_version, {"results": results})


def _shows_figures(node: Node, access: Access, resource: Any) -> bool:
    """Return whether the answer includes the cleaner's figures of a topic (`config/virtual_topic_table.py`)."""
    if resource.resource_type != TOPIC_RESOURCE or not node.config.diamant_describe:
        return False
    if resource.configuration_keys and not any(name in ROWS for name in resource.configuration_keys):
        return False
    if not access.allows(permissions.DESCRIBE_CONFIGS_TOPIC, resource.resource_name, is_asked=False):
        return False
    topic = node.topics.by_name.get(resource.resource_name)
    return topic is not None and any(log.config.is_compacted for log in topic.logs.values())


async def _in_slices(
    node: Node, compactions: Lazy[Compactions], context: RequestContext, request: DescribeConfigsRequest
) -> bytes | list[bytes]:
    access = context.access
    figures: TopicFigures | None = None
    results = []
    encode = element_encoder(KEY, context.api_version, "results")
    async for resource in in_slices(request.resources):
        shown: list[DescribedConfig] = []
        if _shows_figures(node, access, resource):
            figures = figures or await compactions().figures()
            shown = await figures.describe(resource.resource_name)
        results.append(encode(_describe(node, context, request, resource, shown)))
    parts = encode_around(KEY, context.api_version, "results", results)
    return parts if sum(map(len, parts)) > MAX_JOINED_BYTES else b"".join(parts)


def _describe(
    node: Node,
    context: RequestContext,
    request: DescribeConfigsRequest,
    resource: Any,
    more: Sequence[DescribedConfig] = (),
) -> dict[str, object]:
    result: dict[str, object] = {
        "error_code": 0,
        "error_message": "",
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [],
    }
    try:
        check_resource_access(context.access, TO_READ, resource.resource_type, resource.resource_name)
        described = describe_configs(node, resource.resource_type, resource.resource_name, context.connection)
    except REQUEST_ERRORS as error:
        code, message = error_of(error)
        result["error_code"], result["error_message"] = code, message or ""
        return result
    wanted = resource.configuration_keys
    result["configs"] = [
        _entry(config, request.include_synonyms, getattr(request, "include_documentation", False))
        for config in [*described, *more]
        if not wanted or config.name in wanted
    ]
    return result


def _entry(config: DescribedConfig, include_synonyms: bool, include_documentation: bool) -> dict[str, object]:
    return {
        "name": config.name,
        "value": None if config.is_sensitive else config.value,
        "read_only": config.is_read_only,
        "config_source": int(config.source),
        "is_sensitive": config.is_sensitive,
        "synonyms": (
            [
                {"name": synonym.name, "value": synonym.value, "source": int(synonym.source)}
                for synonym in config.synonyms
            ]
            if include_synonyms
            else []
        ),
        "config_type": int(config.type),
        "documentation": config.documentation if include_documentation else None,
    }
