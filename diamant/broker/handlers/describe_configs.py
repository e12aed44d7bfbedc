"""DescribeConfigs (key 32), versions 1 to 4: configurations of topics and of the broker, and where each comes from.

Versions: 3 adds types and documentation (KIP-569).
Deviations: broker loggers have no levels to show: the answer is empty.

Source: ConfigHelper.describeConfigs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.config import BROKER_CONFIGS
from diamant.broker.config_changes import check_broker_name, check_resource
from diamant.broker.config_key import ConfigSource, ConfigSynonym, ConfigType, DescribedConfig
from diamant.broker.dispatch import REQUEST_ERRORS, Api, RequestContext, error_of
from diamant.broker.server import Answer
from diamant.broker.topic_config import describe_topic_configs
from diamant.protocol.metadata_records import BROKER_LOGGER_RESOURCE, BROKER_RESOURCE, TOPIC_RESOURCE
from diamant.protocol.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

KEY = 32


def handle(broker: Broker, context: RequestContext, request: Any) -> Answer:
    """Describe every resource for itself."""
    results = [_describe(broker, request, resource) for resource in request.resources]
    return encode_response_fields(KEY, context.api_version, {"results": results})


def _describe(broker: Broker, request: Any, resource: Any) -> dict[str, Any]:
    result: dict[str, Any] = {
        "error_code": 0,
        "error_message": None,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [],
    }
    try:
        described = _configs(broker, resource.resource_type, resource.resource_name)
    except REQUEST_ERRORS as error:
        result["error_code"], result["error_message"] = error_of(error)
        return result
    wanted = resource.configuration_keys
    result["configs"] = [
        _entry(config, request.include_synonyms, getattr(request, "include_documentation", False))
        for config in described
        if not wanted or config.name in wanted
    ]
    return result


def _configs(broker: Broker, resource_type: int, resource_name: str) -> list[DescribedConfig]:
    if resource_type == BROKER_LOGGER_RESOURCE:
        check_broker_name(broker, resource_name)
        return []
    check_resource(broker, resource_type, resource_name)
    if resource_type == TOPIC_RESOURCE:
        return describe_topic_configs(broker.topics.configs_of(resource_name), broker.config)
    if resource_name:
        return broker.config.describe()
    return [
        _dynamic_default(name, value)
        for name, value in broker.metadata.image.configs.get((BROKER_RESOURCE, ""), {}).items()
    ]


def _dynamic_default(name: str, value: str) -> DescribedConfig:
    """A configuration that was set for all brokers; of "all brokers" only these are shown."""
    key = BROKER_CONFIGS.get(name)
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return DescribedConfig(
        name=name,
        value=value,
        source=source,
        type=key.type if key is not None else ConfigType.STRING,
        is_read_only=False,
        is_sensitive=False,
        synonyms=(ConfigSynonym(name, value, source),),
        documentation=key.documentation if key is not None else "",
    )


def _entry(config: DescribedConfig, include_synonyms: bool, include_documentation: bool) -> dict[str, Any]:
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


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
