"""The configuration of a client of a secured broker, in the words of each client library.

config = broker.client_config("alice")
Producer(config.confluent())                      # confluent-kafka, librdkafka, node-rdkafka
AIOKafkaProducer(**config.aiokafka())
KafkaProducer(**config.kafka_python())
path.write_text(config.java())                    # a properties file: the Java client, Kafka's own tools
config.check()                                    # logs in once; ClientRefused if the broker does not let it in
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

PLAINTEXT = "PLAINTEXT"
CHECK_TIMEOUT_S = 30.0

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class ClientRefused(Exception):
    """The broker has not let a client in; the text has the broker's own words if there were any."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Where a client connects to, who it is, and whom it trusts. Fields that do not apply are None."""

    bootstrap_servers: str
    security_protocol: str = PLAINTEXT
    mechanism: str | None = None
    user: str | None = None
    password: str | None = None
    ca_file: str | None = None
    """Certificates that the client trusts, in PEM; for listeners with TLS."""

    def confluent(self) -> dict[str, str]:
        """For confluent-kafka, and everything else on librdkafka."""
        return _without_none(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "security.protocol": self.security_protocol,
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.user,
                "sasl.password": self.password,
                "ssl.ca.location": self.ca_file,
            }
        )

    def kafka_python(self) -> dict[str, str]:
        """Keywords for the classes of kafka-python."""
        return {**self._python(), **_without_none({"ssl_cafile": self.ca_file})}

    def aiokafka(self) -> dict[str, str | ssl.SSLContext]:
        """Keywords for the classes of aiokafka."""
        context = self._ssl_context()
        return {**self._python(), **({} if context is None else {"ssl_context": context})}

    def java(self) -> str:
        """The text of a properties file, for the Java client and for `--command-config` of Kafka's own tools."""
        options = f"username={_quoted(self.user or '')} password={_quoted(self.password or '')}"
        login = None if self.mechanism is None else f"{_LOGIN_MODULES[self.mechanism]} required {options};"
        properties = _without_none(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "security.protocol": self.security_protocol,
                "sasl.mechanism": self.mechanism,
                "sasl.jaas.config": login,
                "ssl.truststore.type": None if self.ca_file is None else "PEM",
                "ssl.truststore.location": self.ca_file,
            }
        )
        return "".join(f"{name}={_property(value)}\n" for name, value in properties.items())

    def check(self) -> None:
        """Connect and log in. ClientRefused if the broker does not let this client in. For listeners without TLS."""
        from diamant.broker.client.kafka_client import KafkaClient
        from diamant.broker.client.kafka_connection import ConnectionFailed
        from diamant.broker.client.login import Login

        login = None if self.user is None else Login(self.user, self.password or "", self.mechanism)
        try:
            with KafkaClient(self.bootstrap_servers, timeout_s=CHECK_TIMEOUT_S, login=login) as client:
                client.topics([])
        except ConnectionFailed as error:
            raise ClientRefused(str(error)) from None

    def _python(self) -> dict[str, str]:
        return _without_none(
            {
                "bootstrap_servers": self.bootstrap_servers,
                "security_protocol": self.security_protocol,
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self.user,
                "sasl_plain_password": self.password,
            }
        )

    def _ssl_context(self) -> ssl.SSLContext | None:
        if self.ca_file is None:
            return None
        import ssl

        return ssl.create_default_context(cafile=self.ca_file)


def _without_none(values: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _quoted(value: str) -> str:
    """A value of an option in a JAAS text."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _property(value: str) -> str:
    """A value in a properties file, which Java reads as Latin-1."""
    escaped = value.replace("\\", "\\\\").encode("utf-16-be")
    units = (int.from_bytes(escaped[at : at + 2], "big") for at in range(0, len(escaped), 2))
    return "".join(chr(unit) if unit < 0x80 else f"\\u{unit:04x}" for unit in units)
