"""UpdateFeatures (key 57), versions 0 to 2: finalize levels of features (KIP-584, KIP-778).

Behaviour: the updates take effect all together or not at all; setting a level that is already finalized has no effect. After the
response, ApiVersions reports the new levels with a higher epoch.
Versions: 1 replaces allow_downgrade by the type of upgrade, and adds validate_only; 2 drops the results per feature, which are
always empty here, as an error applies to the whole request.
streams.version has no effect here; its level is stored for a Kafka that opens the directory later.
Deviation: kraft.version cannot be raised.

Source: FeatureControlManager.updateFeatures, QuorumFeatures.reasonNotLocallySupported,
ConfigurationControlManager.updateFeatures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_fields
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import BROKER_RESOURCE, ConfigRecord, FeatureLevelRecord, MetadataRecord
from diamant.storage.config_key import ConfigSource
from diamant.storage.kraft import features

if TYPE_CHECKING:
    from kio.schema.update_features.v2.request import UpdateFeaturesRequest

    from diamant.broker.node.node import Node

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
KRAFT_VERSION = "kraft.version"
_FIRST_WITH_TYPE = 1


async def answer(
    node: Node, answers: dict[int, bytes], context: RequestContext, request: UpdateFeaturesRequest
) -> ResponseFields:
    """Update features. `answers`: the cached responses of ApiVersions, cleared after a change."""
    version = context.api_version
    try:
        wanted: dict[str, tuple[int, int]] = {}
        for update in request.feature_updates:
            wanted[str(update.feature)] = (int(update.max_version_level), _type(version, update))
        levels = {name: level for name, (level, _) in wanted.items()}
        for name, (level, kind) in wanted.items():
            _check(node, name, level, kind)
            _check_dependency(name, level, levels.get(features.METADATA_VERSION, node.metadata.image.metadata_version))
        records: list[MetadataRecord] = [
            FeatureLevelRecord(name=name, feature_level=level)
            for name, level in levels.items()
            if level != _present(node, name)
        ]
        if records and not getattr(request, "validate_only", False):
            if levels.get(features.ELIGIBLE_LEADER_REPLICAS_VERSION):
                records = [*_cluster_wide_minimum(node), *records]
            node.metadata.append(records)
            node.apply_dynamic_config()
            answers.clear()
            await node.topics.sync()
    except REQUEST_ERRORS as error:
        fields = error_fields(error)
        if fields["error_code"] == ErrorCode.INVALID_UPDATE_VERSION:
            text = f"The update failed for all features since the following feature had an error: {fields['error_message']}"
            fields["error_message"] = text
        return fields
    return {"error_code": 0, "error_message": None}


def _type(version: int, update: Any) -> int:
    if version < _FIRST_WITH_TYPE:
        return SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    return int(update.upgrade_type)


def _present(node: Node, name: str) -> int:
    if name == KRAFT_VERSION:
        return 1 if node.metadata.voters is not None else 0
    return node.metadata.image.features.get(name, 0)


def _check(node: Node, name: str, level: int, kind: int) -> None:
    node_id = node.config.node_id
    present = _present(node, name)
    prefix = f"Invalid update version {level} for feature {name}. "

    def refuse(reason: str) -> KafkaError:
        return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, prefix + reason)

    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise refuse("The controller does not support the given upgrade type.")
    if level < 0:
        raise refuse("A feature version cannot be less than 0.")
    supported = features.SUPPORTED_FEATURES.get(name)
    if supported is None:
        raise refuse(f"Local controller {node_id} does not support this feature.")
    lowest, highest = supported
    if not (lowest <= level <= highest or (level == 0 and name != features.METADATA_VERSION)):
        raise refuse(f"Local controller {node_id} only supports versions {lowest}-{highest}")
    if level < present and kind == UPGRADE:
        raise refuse(
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if level > present and kind != UPGRADE:
        raise refuse("Can't downgrade to a newer version.")
    if name == KRAFT_VERSION and level < present:
        raise refuse("Can't downgrade the version of this feature.")
    if name == KRAFT_VERSION and level > present:
        raise refuse("It can only be set when a directory is formatted.")
    if name == features.METADATA_VERSION and features.may_lose_metadata(present, level):
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Unsupported metadata.version downgrade from {present} to {level}. "
            + (
                "Unsafe metadata downgrade is not supported in this version."
                if kind == UNSAFE_DOWNGRADE
                else "Refusing to perform the requested downgrade because it might delete metadata information."
            ),
        )


def _check_dependency(name: str, level: int, metadata_version: int) -> None:
    first = features.FIRST_WITH_ELIGIBLE_LEADER_REPLICAS
    if name == features.ELIGIBLE_LEADER_REPLICAS_VERSION and level and metadata_version < first:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature {name}. {name} could not be set to {level} because it depends on "  # noqa: S608  (no SQL)
            f"{features.METADATA_VERSION} level {first}",
        )


def _cluster_wide_minimum(node: Node) -> list[MetadataRecord]:
    """Return records that set min.insync.replicas for the cluster and for no broker, as eligible leader replicas require."""
    configs = node.metadata.image.configs
    records: list[MetadataRecord] = []
    if features.MIN_INSYNC_REPLICAS not in configs.get((BROKER_RESOURCE, ""), {}):
        static = (ConfigSource.STATIC_BROKER_CONFIG, ConfigSource.DEFAULT_CONFIG)
        value = next(one.value for one in node.config.sources(features.MIN_INSYNC_REPLICAS) if one.source in static)
        records.append(
            ConfigRecord(
                resource_type=BROKER_RESOURCE, resource_name="", name=features.MIN_INSYNC_REPLICAS, value=value
            )
        )
    records += [
        ConfigRecord(resource_type=kind, resource_name=broker, name=features.MIN_INSYNC_REPLICAS, value=None)
        for (kind, broker), values in configs.items()
        if kind == BROKER_RESOURCE and broker and features.MIN_INSYNC_REPLICAS in values
    ]
    return records
