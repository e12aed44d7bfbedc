"""The configuration of a broker: `BrokerConfig`, the typed view of the tables in this folder.

The first source that sets a value wins: the dynamic configuration of this broker, the dynamic configuration of all brokers,
the properties given at the start, the default.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from diamant.broker.acl import Acl
from diamant.broker.config.authorization_table import check_authorization, put_acls
from diamant.broker.config.broker_table import (
    BROKER_CONFIGS,
    BROKERS,
    DEFAULT_LISTENER,
    OUR_PREFIX,
    RACK_AWARE,
    REPLICA_SELECTOR,
    SPARK_CONF_PREFIX,
    LogSettings,
    NetworkSettings,
    OwnSettings,
    ip_overrides_of,
)
from diamant.broker.config.coordinator_table import CoordinatorSettings
from diamant.broker.config.kafka_table import KAFKA_ONLY
from diamant.broker.config.listeners import (
    META_ADDRESSES,
    PLAINTEXT,
    SASL_PLAINTEXT,
    SASL_SSL,
    Listener,
    listener_text,
    parse_address,
    parse_listeners,
    parse_protocol_map,
)
from diamant.broker.config.sasl_table import USERS
from diamant.broker.config.security_table import check_security, names_of_setting, setting_of_listener
from diamant.broker.config.ssl_table import HTTP_STORES, TLS
from diamant.broker.config.topic_table import TOPIC_CONFIGS
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.config_key import (
    HIDDEN,
    LONG_MAX,
    ConfigError,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    Value,
    format_value,
)
from diamant.storage.input_file import read_input
from diamant.storage.properties import parse_properties

logger = logging.getLogger("diamant.config")

MAX_PROPERTIES_BYTES = 1024 * 1024
"""The maximum size of a server.properties file."""


class BrokerConfig(NetworkSettings, LogSettings, OwnSettings, CoordinatorSettings):
    """The configuration of a broker. Immutable; raises ConfigError for invalid values.

    ``listen``: one or several of ``host:port`` or ``NAME://host:port``; port 0 takes a free port. ``data_dir``: the data
    directory. ``properties``: strings by Kafka's names. Further keywords are Kafka's names with underscores and accept
    Python values. ``listen`` and ``data_dir`` override keywords, and keywords override properties. ``users``: names and
    passwords; addresses without a NAME then become SASL_PLAINTEXT listeners. ``acls``: strings such as "User:alice READ topic
    users", or `Acl` objects; they turn the authorizer on.

        BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, num_partitions=4, properties={"log.segment.bytes":
        "1048576"})

    Every row of `BROKER_CONFIGS` can be read as `config["log.segment.bytes"]`; the settings of the base classes are
    attributes, too, each with its type.
    """

    message_max_bytes: int
    """Comes from the row of `max.message.bytes` in the table of topics."""

    # Attributes derived from several rows.
    data_dir: str
    listeners: list[Listener]  # type: ignore[assignment]
    advertised_listeners: list[Listener]  # type: ignore[assignment]
    """In the order of `listeners`. Port 0 means the actual port of the listener."""
    http_listener: Listener | None
    """The listener of the HTTP port; None if it is off."""
    warnings: tuple[str, ...]
    """Warnings about accepted values that have no effect, one line each; logged once at construction."""
    clock: str
    """The clock of stored data: "system" or "manual" (`diamant.clock`)."""
    spark_conf: Mapping[str, str]
    """Settings for Spark: `diamant.cleaner.spark.conf.*` without the prefix. May contain secrets."""
    listener_settings: Mapping[str, str]
    """Settings of single listeners, `listener.name.*`; listener and mechanism in lower case. May contain secrets."""
    static_others: Mapping[str, str]
    """Other properties given at the start: the settings of single listeners, and dynamic configurations that only Kafka uses."""

    def __init__(
        self,
        listen: str | Sequence[str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        users: Mapping[str, str] | None = None,
        acls: Iterable[str | Acl] | None = None,
        **kafka_names: Any,
    ) -> None:
        static = dict(properties or {})
        for keyword, value in kafka_names.items():
            static[_name_of(keyword)] = _text(keyword, value)
        if users is not None:
            static[USERS] = json.dumps(dict(users))
        put_acls(static, acls)
        _name_listeners(static, listen)
        if data_dir is not None:
            static["log.dirs"] = os.fspath(data_dir)
        self._resolve(static, {}, {})
        check_security(static, self.listeners)
        check_authorization(static)
        _check_static(self._values, self._topic_defaults)
        _check_ports(self.all_listeners)
        for warning in self.warnings:
            logger.warning(warning)

    def with_dynamic(self, defaults: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
        """Return this configuration with the dynamic configurations of all brokers (``defaults``) and of this one (``own``).

        Both replace the configurations of an earlier call. Values that do not parse or are not dynamic have no effect.
        """
        changed = BrokerConfig.__new__(BrokerConfig)
        changed._resolve(self._given(), defaults, own)
        return changed

    def elsewhere(self, data_dir: str, **kafka_names: Any) -> BrokerConfig:
        """Return the static part of this configuration, for another broker in another directory, on free ports."""
        given = self._given()
        for name in ("log.dir", "metadata.log.dir", "advertised.listeners"):
            given.pop(name, None)
        given["listeners"] = ",".join(str(listener._replace(port=0)) for listener in self.listeners)
        if self.http_listener is not None:
            given["diamant.http.listen"] = self.http_listener._replace(port=0).address
        return BrokerConfig(data_dir=data_dir, properties=given, **kafka_names)

    def of_broker(self, broker: int) -> BrokerConfig:
        """Return the static part of this configuration for one of several brokers, with that broker's id, rack and addresses."""
        given = self._given()
        given.pop("broker.id", None)
        given["node.id"], given["broker.rack"] = str(self.node_id + broker), self.racks[broker] or ""
        told = [listener.of_broker(broker) for listener in self.advertised_listeners]
        bound = [listener for listener in self.all_listeners if listener.broker == broker]
        for name, listeners in (("listeners", bound), ("advertised.listeners", told)):
            if name in given:
                given[name] = ",".join(map(str, listeners))
        changed = BrokerConfig.__new__(BrokerConfig)
        changed._resolve(given, {}, {})
        return changed

    def of_listener(self, listener: str, setting: str, mechanism: str = "") -> tuple[str, Value]:
        """Return the full name and the value of a setting of a listener, or of one of its mechanisms.

        The most specific value wins: listener and mechanism, then listener, then broker. Raises ConfigError if the value is
        not allowed.
        """
        for name in names_of_setting(listener, setting, mechanism):
            if name in self.listener_settings:
                return name, replace(BROKER_CONFIGS[setting], name=name).parse(self.listener_settings[name])
        return setting, self._values[setting]

    def is_set(self, setting: str, listener: str) -> bool:
        """Return True if a setting is set for a listener or for the broker."""
        is_of_listener = any(name in self.listener_settings for name in names_of_setting(listener, setting))
        return is_of_listener or any(setting in layer for layer in self._layers.values())

    def _given(self) -> dict[str, str]:
        """Return, as strings, the settings given at the start that have an effect or are kept for Kafka."""
        passed_on = {SPARK_CONF_PREFIX + name: text for name, text in self.spark_conf.items()}
        return {**self._layers[ConfigSource.STATIC_BROKER_CONFIG], **passed_on, **self.static_others}

    def __getitem__(self, name: str) -> Value:
        """Return the value of a row of `BROKER_CONFIGS`. Raises KeyError for other names."""
        return self._values[name]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"BrokerConfig is immutable: {name}")

    def __repr__(self) -> str:
        static = self._layers[ConfigSource.STATIC_BROKER_CONFIG]
        shown = (
            f"{name}={HIDDEN if BROKER_CONFIGS[name].is_sensitive else value}" for name, value in sorted(static.items())
        )
        return f"BrokerConfig({', '.join(shown)})"

    @property
    def num_recovery_threads(self) -> int:
        """Shorthand for `num_recovery_threads_per_data_dir`."""
        return self.num_recovery_threads_per_data_dir

    def advertised(self, bound: Sequence[Listener]) -> list[Listener]:
        """Return the listeners of all brokers as clients see them, with actual ports. An empty host means the address that a
        client connected to.
        """
        is_explicit = self["advertised.listeners"] is not None
        found = []
        for number, actual in enumerate(bound):
            which = number % len(self.listeners)
            told = self.advertised_listeners[which].of_broker(actual.broker)
            host = "" if not is_explicit and self.listeners[which].host in META_ADDRESSES else told.host
            found.append(told._replace(host=host, port=told.port if is_explicit and told.port else actual.port))
        return found

    @property
    def broker_ids(self) -> range:
        """The ids of the brokers in this process: one, unless `diamant.brokers` is set."""
        return range(self.node_id, self.node_id + self.diamant_brokers)

    @property
    def racks(self) -> list[str | None]:
        """The rack of each broker in this process."""
        count = self.diamant_brokers
        if count == 1:
            return [self.broker_rack]
        if self.broker_rack is None:
            return [f"r{number}" for number in range(1, count + 1)]
        given = [rack.strip() for rack in self.broker_rack.split(",")]
        return [given[number % len(given)] for number in range(count)]

    def internal_factor(self, name: str) -> int:
        """Return an internal topic's replication factor: its configuration if set, else 3, but at most the number of brokers."""
        is_set = any(name in layer for layer in self._layers.values())
        value = self._values[name] if is_set else 3
        assert isinstance(value, int)
        return min(value, self.diamant_brokers)

    @property
    def all_listeners(self) -> list[Listener]:
        """The listeners of all brokers of this process, in the order of the brokers."""
        found = [one.of_broker(number) for number in range(self.diamant_brokers) for one in self.listeners]
        ports = self.diamant_brokers_ports or []
        if ports and not (len(ports) == self.diamant_brokers and all(map(str.isdecimal, ports))):
            expected = f"expected {self.diamant_brokers} numbers, one for each of diamant.brokers"
            raise ConfigError(f"diamant.brokers.ports: {expected}, got {','.join(ports)}")
        for number, port in enumerate(ports):
            found[number * len(self.listeners)] = self.listeners[0]._replace(port=int(port), broker=number)
        return found

    def topic_default(self, name: str) -> Value:
        """Return the value of a topic configuration for topics that do not set it. Raises KeyError for other names."""
        return self._topic_defaults[name]

    def sources(self, name: str) -> list[ConfigSynonym]:
        """Return all sources of a broker configuration's value, the effective one first. Raises KeyError for other names."""
        key = BROKER_CONFIGS[name]
        found = []
        for source, layer in self._layers.items():
            if name in layer:
                found.append(ConfigSynonym(name, key.shown(key.parse(layer[name])), source))
        if key.default is not None:
            found.append(ConfigSynonym(name, key.shown(key.default), ConfigSource.DEFAULT_CONFIG))
        return found

    def _resolve(
        self, static: Mapping[str, str], dynamic_defaults: Mapping[str, str], dynamic: Mapping[str, str]
    ) -> None:
        """Set all attributes from the three layers of settings."""
        known = {name: text for name, text in static.items() if name in BROKER_CONFIGS}
        for name, text in known.items():
            BROKER_CONFIGS[name].parse(text)
        layers = {
            ConfigSource.DYNAMIC_BROKER_CONFIG: _usable(dynamic),
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: _usable(dynamic_defaults),
            ConfigSource.STATIC_BROKER_CONFIG: known,
        }
        values = {name: key.default for name, key in BROKER_CONFIGS.items()}
        for layer in reversed(layers.values()):
            values.update((name, BROKER_CONFIGS[name].parse(text)) for name, text in layer.items())
        values["node.id"] = values["broker.id"] = _node_id(known, values)
        _check_request_memory(values)
        listeners, advertised = _listeners(values, is_map_set="listener.security.protocol.map" in known)
        resolved: dict[str, object] = {name.replace(".", "_"): value for name, value in values.items()}
        resolved.update(
            data_dir=_data_dir(values),
            listeners=listeners,
            advertised_listeners=advertised,
            http_listener=_http_listener(values),
            listener_settings=_listener_settings(static) | _usable_listener_settings({**dynamic_defaults, **dynamic}),
            warnings=tuple(map(_without_effect, filter(_has_no_effect, static.items()))),
            clock=values["diamant.clock"],
            spark_conf={
                name.removeprefix(SPARK_CONF_PREFIX): text
                for name, text in static.items()
                if name.startswith(SPARK_CONF_PREFIX)
            },
            _layers=layers,
            static_others=_listener_settings(static) | _kept_for_kafka(static),
            _values=values,
            _topic_defaults=_resolve_topic_defaults(values),
        )
        self.__dict__.update(resolved)

    _layers: dict[ConfigSource, dict[str, str]]
    _values: dict[str, Value]
    _topic_defaults: dict[str, Value]


def _name_listeners(static: dict[str, str], listen: str | Sequence[str] | None) -> None:
    """Set `listeners`. Addresses without a name become SASL listeners if users are set, and use TLS if `diamant.tls` is set."""
    has_tls = BROKER_CONFIGS[TLS].parse(static.get(TLS, "false"))
    protocol = (SASL_SSL if has_tls else SASL_PLAINTEXT) if static.get(USERS) else "SSL" if has_tls else PLAINTEXT
    if listen is not None:
        addresses = [listen] if isinstance(listen, str) else list(listen)
        static["listeners"] = ",".join(listener_text(address, protocol) for address in addresses)
    elif protocol != PLAINTEXT and "listeners" not in static:
        static["listeners"] = DEFAULT_LISTENER.replace(PLAINTEXT, protocol)


def _listener_settings(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of single listeners that have an effect, with the names of listeners and mechanisms in lower case.
    Raises ConfigError for an invalid value.
    """
    found = {}
    for name, text in texts.items():
        if (setting := setting_of_listener(name)) in BROKER_CONFIGS:
            replace(BROKER_CONFIGS[setting], name=name).parse(text)
            found[f"{name[: -len(setting)].lower()}{setting}"] = text
    return found


def _kept_for_kafka(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if name in KAFKA_ONLY and KAFKA_ONLY[name].is_dynamic}


def _usable_listener_settings(texts: Mapping[str, str]) -> dict[str, str]:
    """Like `_usable`, but for the settings of single listeners."""
    usable = {}
    for name, text in texts.items():
        try:
            validate_dynamic_config(name, text)
            usable.update(_listener_settings({name: text}))
        except (ConfigError, KafkaError):
            continue
    return usable


def _has_no_effect(setting: tuple[str, str]) -> bool:
    name, text = setting
    if name == REPLICA_SELECTOR:
        return text not in ("", RACK_AWARE)
    return not (
        name in BROKER_CONFIGS or name.startswith(SPARK_CONF_PREFIX) or setting_of_listener(name) in BROKER_CONFIGS
    )


def validate_dynamic_config(name: str, value: str | None) -> None:
    """Check one dynamic configuration before it is set. Raises KafkaError. `handlers/configs/changes.py` checks combinations.

    As in Kafka, the error is always INVALID_REQUEST, not INVALID_CONFIG as for topics (``DynamicBrokerConfig.validate``), and
    messages about a listener's setting do not name the listener. Unknown names are accepted, since Kafka keeps them for its
    plug-ins, unless they have the prefix of Diamant's own configurations.
    """
    if value is None:
        return
    setting = setting_of_listener(name)
    key = BROKER_CONFIGS.get(setting or name) or KAFKA_ONLY.get(setting or name)
    if key is None:
        if name.startswith(SPARK_CONF_PREFIX):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{name}]")
        if name.startswith(OUR_PREFIX):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name}: there is no such configuration.{_hint(name)}")
        return
    if not key.is_dynamic and not setting:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{name}]")
    try:
        parsed = key.parse(value)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    if key.name == "max.connections" and parsed == 0:
        reason = "expected at least 1: with 0, no client could connect, not even to undo the change"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid value 0 for configuration {name}: {reason}")


def _usable(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the dynamic settings that have an effect here. They may have been set on another broker, with other checks."""
    usable = {}
    for name, text in texts.items():
        try:
            validate_dynamic_config(name, text)
        except KafkaError:
            continue
        if name in BROKER_CONFIGS:
            usable[name] = text
    return usable


def _text(name: str, value: object) -> str:
    """Convert a Python value to the string that the table parses."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return format_value(value) or ""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    raise ConfigError(f"{name}: {type(value).__name__} is not a bool, number, string, list or path")


def _name_of(keyword: str) -> str:
    """Return the configuration name that a keyword means. Raises TypeError if it is unknown: `properties` accepts other names."""
    name = {"tls": TLS, "brokers": BROKERS}.get(keyword) or keyword.replace("_", ".")
    if name in BROKER_CONFIGS or name.startswith(SPARK_CONF_PREFIX):
        return name
    keywords = [
        "listen",
        "data_dir",
        "properties",
        "tls",
        "brokers",
        *(known.replace(".", "_") for known in BROKER_CONFIGS),
    ]
    import difflib

    similar = difflib.get_close_matches(keyword, keywords, n=1, cutoff=0.6)
    hint = f", did you mean {similar[0]}?" if similar else ""
    raise TypeError(f"{keyword}: there is no such configuration{hint} (properties= accepts names of other programs)")


def _without_effect(setting: tuple[str, str]) -> str:
    name, _ = setting
    if name == REPLICA_SELECTOR or (name in KAFKA_ONLY and KAFKA_ONLY[name].type is ConfigType.CLASS):
        return f"{name} has no effect: Diamant runs no Java classes."
    return f"{name} has no effect: it is not a configuration that Diamant uses.{_hint(name)}"


def _hint(name: str) -> str:
    """Return a question that suggests a similar known name; "" if there is none, or if the name is one of Kafka's."""
    import difflib

    setting = setting_of_listener(name) or name
    similar = [] if setting in KAFKA_ONLY else difflib.get_close_matches(setting, BROKER_CONFIGS, n=1, cutoff=0.85)
    return f" Did you mean {name[: -len(setting)]}{similar[0]}?" if similar else ""


def _node_id(known: Mapping[str, str], values: Mapping[str, Value]) -> Value:
    if "broker.id" not in known:
        return values["node.id"]
    if "node.id" in known and values["node.id"] != values["broker.id"]:
        raise ConfigError(f"node.id is {values['node.id']} and broker.id is {values['broker.id']}: they must agree")
    return values["broker.id"]


def _check_request_memory(values: Mapping[str, Value]) -> None:
    queued, largest = values["queued.max.request.bytes"], values["socket.request.max.bytes"]
    assert isinstance(queued, int)
    assert isinstance(largest, int)
    if 0 < queued < largest:
        raise ConfigError(
            f"queued.max.request.bytes is {queued}, less than the largest request (socket.request.max.bytes, {largest})"
        )


def _check_ports(listeners: Sequence[Listener]) -> None:
    """Check that the ports of several brokers, which by default are consecutive, are valid and distinct."""
    taken: dict[tuple[str, int], Listener] = {}
    for listener in filter(lambda one: one.port, listeners):
        if listener.port > 0xFFFF:
            raise ConfigError(
                f"listeners: {listener} is beyond port 65535, for broker {listener.broker + 1} of diamant.brokers"
            )
        other = taken.setdefault((listener.host, listener.port), listener)
        if other is not listener:
            raise ConfigError(
                f"listeners: {other} and {listener} would use the same port: each of the diamant.brokers takes the next port of "
                "each listener"
            )


def _strings(value: Value) -> list[str]:
    return value if isinstance(value, list) else []


def _data_dir(values: Mapping[str, Value]) -> str:
    name = "log.dirs" if values["log.dirs"] is not None else "log.dir"
    directories = _strings(values[name])
    if len(directories) != 1:
        raise ConfigError(f"{name}: expected one directory, got {len(directories)}: {','.join(directories)}")
    if values["metadata.log.dir"] not in (None, directories[0]):
        raise ConfigError(f"metadata.log.dir is {values['metadata.log.dir']}, but must be {directories[0]} ({name})")
    return directories[0]


def _listeners(values: Mapping[str, Value], *, is_map_set: bool) -> tuple[list[Listener], list[Listener]]:
    """Return the listeners to bind and the advertised listeners, in the same order."""
    if "broker" not in _strings(values["process.roles"]):
        raise ConfigError("process.roles: must include broker")
    controllers = {name.upper() for name in _strings(values["controller.listener.names"])}
    protocols = parse_protocol_map(str(values["listener.security.protocol.map"]))
    if not is_map_set:
        for name in controllers:  # KafkaConfig.effectiveListenerSecurityProtocolMap
            protocols.setdefault(name, PLAINTEXT)
    bound = parse_listeners("listeners", _strings(values["listeners"]), protocols)
    bound = [listener for listener in bound if listener.name not in controllers]
    if not bound:
        raise ConfigError("listeners: expected at least one for clients")
    if values["advertised.listeners"] is None:
        return bound, [_advertised_by_default(listener) for listener in bound]
    advertised = parse_listeners(
        "advertised.listeners", _strings(values["advertised.listeners"]), protocols, names_may_share_ports=True
    )
    by_name = {listener.name: listener for listener in advertised if listener.name not in controllers}
    if by_name.keys() != {listener.name for listener in bound}:
        raise ConfigError(
            f"advertised.listeners: expected the names in listeners ({_names(bound)}), got {_names(by_name.values())}"
        )
    for listener in by_name.values():
        if listener.host in META_ADDRESSES:
            raise ConfigError(f"advertised.listeners: {listener} has no host that a client could connect to")
    return bound, [by_name[listener.name] for listener in bound]


def _http_listener(values: Mapping[str, Value]) -> Listener | None:
    text = values["diamant.http.listen"]
    if not text:
        return None
    return parse_address("diamant.http.listen", str(text), "HTTP")._replace(
        security_protocol="SSL" if any(values[name] for name in HTTP_STORES) else PLAINTEXT
    )


def _names(listeners: Iterable[Listener]) -> str:
    return ", ".join(listener.name for listener in listeners) or "none"


def _advertised_by_default(listener: Listener) -> Listener:
    """Replace a host that means every interface with this machine's name, for uses in which no client has connected."""
    return listener._replace(host=socket.gethostname()) if listener.host in META_ADDRESSES else listener


def check_cleaner_memory(values: Mapping[str, Value]) -> None:
    """Check that each of the cleaner's threads has enough memory for keys (``KafkaConfig.validateValues``)."""
    size, threads = values["log.cleaner.dedupe.buffer.size"], values["log.cleaner.threads"]
    assert isinstance(size, int)
    assert isinstance(threads, int)
    if size // threads <= 1 << 20:
        raise ConfigError(
            f"log.cleaner.dedupe.buffer.size is {size} for {threads} log.cleaner.threads: expected more than 1048576 for each"
        )


def _resolve_topic_defaults(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the broker's default of each topic configuration. As in Kafka (``AbstractKafkaConfig``), ms take precedence over
    minutes, and minutes over hours.
    """
    defaults = {key.name: values[key.synonyms[0]] if key.synonyms else key.default for key in TOPIC_CONFIGS.values()}
    defaults["retention.ms"] = _retention_ms(values)
    defaults["segment.ms"] = _first_ms(values, ("log.roll.ms", 1), ("log.roll.hours", 3_600_000))
    defaults["segment.jitter.ms"] = _first_ms(values, ("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", 3_600_000))
    defaults["flush.ms"] = _first_ms(values, ("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1))
    return defaults


def check_addresses(values: Mapping[str, Value]) -> None:
    """Check that at least one address may connect (``KafkaConfig.validateValues``, which accepts even an override of 0)."""
    limit, overrides = "max.connections.per.ip", "max.connections.per.ip.overrides"
    allowed = ip_overrides_of(str(values[overrides]))
    if values[limit] == 0 and not any(allowed.values()):
        is_set = "is above 0" if allowed else "property is set"
        raise ConfigError(f"{limit} can be set to zero only if {overrides} {is_set}.")


def _check_static(values: Mapping[str, Value], topic_defaults: Mapping[str, Value]) -> None:
    """Check the values given at the start. `with_dynamic` does not: values stored by another broker must not prevent a start."""
    _check_compaction_lags(topic_defaults)
    check_cleaner_memory(values)
    check_addresses(values)
    if values["max.connections"] == 0:
        logger.warning("max.connections=0: no client can connect")


def _check_compaction_lags(defaults: Mapping[str, Value]) -> None:
    shortest, longest = defaults["min.compaction.lag.ms"], defaults["max.compaction.lag.ms"]
    if isinstance(shortest, int) and isinstance(longest, int) and shortest > longest:
        raise ConfigError(
            f"log.cleaner.min.compaction.lag.ms ({shortest}) is more than log.cleaner.max.compaction.lag.ms ({longest})"
        )


def _retention_ms(values: Mapping[str, Value]) -> int:
    retention_ms = _first_ms(
        values, ("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)
    )
    return max(retention_ms, -1)


def _first_ms(values: Mapping[str, Value], *candidates: tuple[str, int]) -> int:
    """Return the value of the first (name, milliseconds per unit) that is set, in milliseconds and at most `LONG_MAX`."""
    for name, unit_ms in candidates:
        value = values[name]
        if isinstance(value, int):
            return min(value * unit_ms, LONG_MAX)
    raise AssertionError(f"the last of {candidates} has a default")


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read a server.properties file. Raises OSError if it is not a readable file, ConfigError if it is not UTF-8 text."""
    try:
        return parse_properties(read_input(path, MAX_PROPERTIES_BYTES).decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{os.fspath(path)}: expected text in UTF-8, but byte {error.start} is invalid") from None
