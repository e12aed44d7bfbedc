"""UpdateFeatures (key 57), versions 0 to 2: finalize levels of features (KIP-584, KIP-778).

Behaviour: all or nothing; present levels are accepted without effect. After the answer, ApiVersions reports the new levels
under a higher epoch.
Versions: 0 has "allow downgrade", 1 the type of upgrade and validate_only; up to 1, the results per feature are empty, as
the error is at the top level.
Deviations: metadata.version is never downgraded; Kafka sometimes can. Unsupported levels are refused although Kafka has
them (share.version, streams.version, eligible.leader.replicas.version); a feature that another broker put into the log
may be removed.

Source: FeatureControlManager.updateFeatures, QuorumFeatures.reasonNotLocallySupported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.handlers.cluster.api_versions import SUPPORTED_FEATURES
from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import FeatureLevelRecord
from diamant.protocol.wire.schemas import encode_response_fields
from diamant.storage.kraft.features import METADATA_VERSION
from diamant.storage.kraft.features import SUPPORTED_FEATURES as READABLE_FEATURES

if TYPE_CHECKING:
    from kio.schema.update_features.v2.request import UpdateFeaturesRequest

    from diamant.broker.node.node import Node

KEY = 57
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
KRAFT_VERSION = "kraft.version"
_FIRST_WITH_TYPE = 1


def handle(node: Node, answers: dict[int, bytes], context: RequestContext, request: UpdateFeaturesRequest) -> Answer:
    """Update features. Always a coroutine, as the metadata log has to be synced. `answers`: the cache of ApiVersions, cleared."""
    return _update(node, answers, context.api_version, request)


async def _update(node: Node, answers: dict[int, bytes], version: int, request: UpdateFeaturesRequest) -> bytes:
    code, message = 0, None
    try:
        wanted: dict[str, tuple[int, int]] = {}
        for update in request.feature_updates:
            wanted[str(update.feature)] = (int(update.max_version_level), _type(version, update))
        for name, (level, kind) in wanted.items():
            _check(node, name, level, kind)
        records = [
            FeatureLevelRecord(name=name, feature_level=level)
            for name, (level, _) in wanted.items()
            if level != _present(node, name)
        ]
        if records and not getattr(request, "validate_only", False):
            node.metadata.append(records)
            answers.clear()
            await node.topics.sync()
    except REQUEST_ERRORS as error:
        code, message = error_of(error)
        if code == ErrorCode.INVALID_UPDATE_VERSION:
            message = f"The update failed for all features since the following feature had an error: {message}"
    return encode_response_fields(KEY, version, {"error_code": code, "error_message": message})


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
    supported = (0, 1) if name == KRAFT_VERSION else SUPPORTED_FEATURES.get(name)
    if supported is None:
        if level == 0 and name in READABLE_FEATURES:
            supported = (0, present)
        else:
            raise refuse(f"Local controller {node_id} does not support this feature.")
    lowest, highest = supported
    if not (lowest <= level <= highest or (level == 0 and name != METADATA_VERSION)):
        raise refuse(f"Local controller {node_id} only supports versions {lowest}-{highest}")
    if level < present and kind == UPGRADE:
        raise refuse(
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if name == KRAFT_VERSION and level < present:
        raise refuse("Can't downgrade the version of this feature.")
    if name == KRAFT_VERSION and level > present:
        raise refuse("It can only be set when a directory is formatted.")
    if name == METADATA_VERSION and level < present:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Unsupported metadata.version downgrade from {present} to {level}. "
            + (
                "Unsafe metadata downgrade is not supported in this version."
                if kind == UNSAFE_DOWNGRADE
                else "Refusing to perform the requested downgrade because it might delete metadata information."
            ),
        )
