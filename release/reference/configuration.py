"""The generator of docs/reference/configuration.md, which prints the tables of configurations.

python -m release.reference.configuration [FILE]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from diamant.broker.config.broker_table import BROKER_CONFIGS
from diamant.broker.config.topic_table import TOPIC_CONFIGS
from diamant.storage.config_key import DOUBLE_MAX, INT_MAX, LONG_MAX, ConfigKey, format_value

_INTRODUCTION = """\
# Configuration

Every configuration of topics and broker, with its default and limits.

<!-- Written by `make docs` from the tables in diamant/broker/config and from LogConfig: change those. -->

- [How to set one](#how-to-set-one)
- [What is refused](#what-is-refused)
- [Topics](#topics)
- [Broker](#broker)

*dynamic*: can be changed while the broker runs. *internal*: in Kafka for its own tests.

## How to set one

Names, types and meanings are Apache Kafka's (4.4).

| where | how |
|---|---|
| file | `diamant start --config server.properties`; the file of a Kafka broker can be used as it is |
| command line | `diamant start --set name=value` |
| Python | `BrokerConfig(num_partitions=4)`, or `BrokerConfig(properties={"num.partitions": "4"})` |
| topic | any Kafka admin client |

## What is refused

A broker configuration that is not in this list is accepted at the start and has no effect. The broker logs each one.
DescribeConfigs also shows those that only Kafka uses, read-only; over the wire they are refused.

Configurations that request security which Diamant or its listeners do not provide are refused, since any client could connect.
These are `sasl.*`, `ssl.*`, `connections.max.reauth.ms` and `security.inter.broker.protocol` if no listener with SASL, or
with TLS, uses them; the same for a listener (`listener.name.NAME.ssl.*`). Kafka's defaults and empty values are accepted
(`--set ssl.client.auth=` clears the value in a file), and so are settings of listeners that are not opened.

A topic configuration that is not in this list is refused, as in Kafka. Values are parsed as in Kafka,
and refused with Kafka's wording:

    Invalid value 10 for configuration segment.bytes: Value must be at least 1048576
"""

_TOPICS = """
## Topics

They are set when a topic is created, or later with any Kafka admin client. A topic that does not set one uses the broker
configuration in the column *broker's default*, if there is one. If there are several, the first that is set counts.
"""

_BROKER = """
## Broker

The first source that sets a value wins: the dynamic configuration of this broker, the dynamic configuration of all brokers, the
properties at the start, the default.
"""


def configuration_page() -> str:
    """Return the text of docs/reference/configuration.md."""
    topics = (_row(key, with_synonyms=True) for key in TOPIC_CONFIGS.values())
    brokers = (_row(key, with_synonyms=False) for key in BROKER_CONFIGS.values())
    return "".join(
        [
            _INTRODUCTION,
            _TOPICS,
            _table(("name", "type", "default", "allowed", "broker's default", "what it does"), topics),
            _BROKER,
            _table(("name", "type", "default", "allowed", "what it does"), brokers),
        ]
    )


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, ("---",) * len(titles), *rows]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(key: ConfigKey, *, with_synonyms: bool) -> tuple[str, ...]:
    synonyms = (", ".join(f"`{name}`" for name in key.synonyms),) if with_synonyms else ()
    traits = [trait for trait, is_so in (("dynamic", key.is_dynamic), ("internal", key.is_internal)) if is_so]
    documentation = key.documentation + (f" *{', '.join(traits)}*" if traits else "")
    return (f"`{key.name}`", key.type.name.lower(), _default(key), key.allowed, *synonyms, documentation)


def _default(key: ConfigKey) -> str:
    if key.default is None:
        return "none"
    if key.default in (INT_MAX, LONG_MAX, DOUBLE_MAX):
        return "unlimited"
    return f"`{format_value(key.default)}`" if key.default != [] else "empty"


def main() -> None:
    """Write the page to the file named on the command line, or to standard output."""
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(configuration_page())
    else:
        sys.stdout.write(configuration_page())


if __name__ == "__main__":
    main()
