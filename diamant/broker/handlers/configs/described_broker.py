"""The configurations of a broker in DescribeConfigs: Kafka's, Diamant's, the listeners', and unknown ones that are set.

Source: ConfigHelper.createBrokerConfigEntry, DynamicBrokerConfig.brokerConfigSynonyms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.broker_table import BROKER_CONFIGS
from diamant.broker.config.kafka_table import KAFKA_ONLY
from diamant.broker.config.security_table import setting_of_listener
from diamant.storage.config_key import ConfigKey, ConfigSource, ConfigSynonym, ConfigType, DescribedConfig

ADVERTISED, NODE_ID = "advertised.listeners", "node.id"


def describe_broker(
    config: BrokerConfig, stored: Mapping[ConfigSource, Mapping[str, str]], advertised: str
) -> list[DescribedConfig]:
    """Return all entries, sorted by name. Kafka sends them in the order of a hash map, but kafkajs expects
    `default.replication.factor` before `num.partitions`.

    `stored`: the dynamically set values by source, in order of precedence. `advertised`: the value of `advertised.listeners` to
    show if none is configured.
    """
    layers = {**stored, ConfigSource.STATIC_BROKER_CONFIG: config.static_others}
    others = dict.fromkeys(name for layer in layers.values() for name in layer if name not in BROKER_CONFIGS)
    kept = [name for name, key in KAFKA_ONLY.items() if not key.is_internal and name not in others]
    described = [*_rows(config, advertised), *(_other(config, layers, name) for name in (*kept, *others))]
    return sorted(described, key=lambda one: one.name)


def described_in(source: ConfigSource, name: str, text: str) -> DescribedConfig:
    """Return an entry of the resource "all brokers", which shows only configurations that are set for it."""
    return _entry(name, _key(name), [ConfigSynonym(name, text, source)])


def _rows(config: BrokerConfig, advertised: str) -> Iterator[DescribedConfig]:
    for key in BROKER_CONFIGS.values():
        synonyms = config.sources(key.name)
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        if key.is_internal and source is ConfigSource.DEFAULT_CONFIG:
            continue
        value = key.shown(config[key.name])
        if key.name == NODE_ID:
            synonyms = synonyms[:1]  # in Kafka, node.id has no default
        if key.name == ADVERTISED and value is None:
            value, synonyms = advertised, [ConfigSynonym(ADVERTISED, advertised, source)]
        yield _described(key.name, value, source, key, synonyms, is_read_only=not key.is_dynamic)


def _other(config: BrokerConfig, layers: Mapping[ConfigSource, Mapping[str, str]], name: str) -> DescribedConfig:
    """Describe a configuration that Diamant itself does not use, or a listener's, which is read-only as in Kafka."""
    key = _key(name)
    synonyms = [ConfigSynonym(name, layer[name], source) for source, layer in layers.items() if name in layer]
    if key is not None and not key.is_dynamic and name in KAFKA_ONLY:
        synonyms = []  # set by a Kafka that used the directory before
    if key is not None and key.name in BROKER_CONFIGS:
        return _entry(name, key, synonyms, config.sources(key.name))
    if key is not None and key.default is not None:
        return _entry(
            name, key, synonyms, [ConfigSynonym(key.name, key.shown(key.default), ConfigSource.DEFAULT_CONFIG)]
        )
    return _entry(name, key, synonyms)


def _entry(
    name: str, key: ConfigKey | None, own: Sequence[ConfigSynonym], further: Sequence[ConfigSynonym] = ()
) -> DescribedConfig:
    """Describe a configuration whose values are strings. If `key` is None, they may be passwords and are hidden, as in Kafka."""
    if key is None or key.is_sensitive:
        own = [synonym._replace(value=None) for synonym in own]
    synonyms = [*own, *further]
    first = synonyms[0] if synonyms else ConfigSynonym(name, None, ConfigSource.DEFAULT_CONFIG)
    is_read_only = key is None or not key.is_dynamic or key.name != name
    return _described(name, first.value, first.source, key or _UNKNOWN, synonyms, is_read_only=is_read_only)


def _described(
    name: str,
    value: str | None,
    source: ConfigSource,
    key: ConfigKey,
    synonyms: Sequence[ConfigSynonym],
    *,
    is_read_only: bool,
) -> DescribedConfig:
    return DescribedConfig(
        name=name,
        value=value,
        source=source,
        type=key.type,
        is_read_only=is_read_only,
        is_sensitive=key.is_sensitive or key is _UNKNOWN,
        synonyms=tuple(synonyms),
        documentation=key.documentation,
    )


_UNKNOWN = ConfigKey("", ConfigType.UNKNOWN, None, "")


def _key(name: str) -> ConfigKey | None:
    setting = setting_of_listener(name) or name
    return BROKER_CONFIGS.get(setting) or KAFKA_ONLY.get(setting)
