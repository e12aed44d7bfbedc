"""The configuration with which a client connects to a secured broker, in the form that each client library expects.

config = broker.client_config("alice")
Producer(config.confluent())                      # confluent-kafka, librdkafka, node-rdkafka
AIOKafkaProducer(**config.aiokafka())
KafkaProducer(**config.kafka_python())
path.write_text(config.java())                    # a properties file: the Java client, Kafka's own tools
config.check()                                    # logs in once, and raises ClientRefused if the broker refuses the client
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from diamant.broker.operation_errors import BadArgument
from diamant.storage.input_file import read_input

PLAINTEXT = "PLAINTEXT"
CHECK_TIMEOUT_S = 30.0
MAX_CA_BYTES = 4 * 1024 * 1024
"""The maximum size of a file with certificates."""

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class ClientRefused(Exception):
    """The broker refused a client. The message includes the broker's own message, if any."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """A client's bootstrap servers, its identity, and the certificates that it trusts. Fields that do not apply are None."""

    bootstrap_servers: str
    security_protocol: str = PLAINTEXT
    mechanism: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    """For listeners with TLS: the certificates that the client trusts, in PEM."""
    certificate: str | None = None
    key: str | None = field(default=None, repr=False)
    """For listeners that require client certificates: the client's `certificate` and its `key`, in PEM."""

    def confluent(self) -> dict[str, str]:
        """Return the configuration for confluent-kafka and other clients based on librdkafka."""
        return _without_none(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "security.protocol": self.security_protocol,
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.user,
                "sasl.password": self.password,
                "ssl.ca.pem": self.ca,
                "ssl.certificate.pem": self.certificate,
                "ssl.key.pem": self.key,
            }
        )

    def kafka_python(self) -> dict[str, str | ssl.SSLContext]:
        """Return keyword arguments for the classes of kafka-python."""
        return self._python()

    def aiokafka(self) -> dict[str, str | ssl.SSLContext]:
        """Return keyword arguments for the classes of aiokafka."""
        return self._python()

    def java(self) -> str:
        """Return a properties file for the Java client, and for `--command-config` of Kafka's own tools."""
        options = f"username={_quoted(self.user or '')} password={_quoted(self.password or '')}"
        login = None if self.mechanism is None else f"{_LOGIN_MODULES[self.mechanism]} required {options};"
        properties = _without_none(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "security.protocol": self.security_protocol,
                "sasl.mechanism": self.mechanism,
                "sasl.jaas.config": login,
                "ssl.truststore.type": None if self.ca is None else "PEM",
                "ssl.truststore.certificates": self.ca,
                "ssl.keystore.type": None if self.certificate is None else "PEM",
                "ssl.keystore.certificate.chain": self.certificate,
                "ssl.keystore.key": self.key,
            }
        )
        return "".join(f"{name}={_property(value)}\n" for name, value in properties.items())

    def check(self) -> None:
        """Connect and log in. Raises ClientRefused if the broker refuses this client."""
        from diamant.broker.client.kafka_client import KafkaClient
        from diamant.broker.client.kafka_connection import ConnectionFailed
        from diamant.broker.client.login import Login

        login = None if self.user is None else Login(self.user, self.password or "", self.mechanism)
        try:
            with KafkaClient(
                self.bootstrap_servers, timeout_s=CHECK_TIMEOUT_S, login=login, tls=self._ssl_context()
            ) as client:
                client.topics([])
        except ConnectionFailed as error:
            raise ClientRefused(str(error)) from None

    def _python(self) -> dict[str, str | ssl.SSLContext]:
        context = self._ssl_context()
        keywords = _without_none(
            {
                "bootstrap_servers": self.bootstrap_servers,
                "security_protocol": self.security_protocol,
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self.user,
                "sasl_plain_password": self.password,
            }
        )
        return {**keywords, **({} if context is None else {"ssl_context": context})}

    def _ssl_context(self) -> ssl.SSLContext | None:
        if self.security_protocol not in ("SSL", "SASL_SSL"):
            return None
        return client_context(self.ca, self.certificate, self.key)


def _without_none(values: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _quoted(value: str) -> str:
    """Quote the value of an option in a JAAS configuration."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _property(value: str) -> str:
    """Escape a value for a properties file, which Java reads as Latin-1."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").encode("utf-16-be")
    units = (int.from_bytes(escaped[at : at + 2], "big") for at in range(0, len(escaped), 2))
    return "".join(chr(unit) if unit < 0x80 else f"\\u{unit:04x}" for unit in units)


def client_context(ca: str | None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """Return a context that trusts `ca` (None: the system's CAs), and presents `certificate` if given. Like Java's clients, and
    Python before 3.13, it accepts certificates without key identifiers. Raises ValueError or ssl.SSLError for invalid PEM.
    """
    if ca == "":
        raise ValueError("no certificate")  # with "", the ssl module would trust the system's CAs
    context = ssl.create_default_context(cadata=ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if certificate is not None:
        load_pem(context, f"{certificate}\n{key or ''}\n".encode())
    return context


def trusting(path: str | None) -> ssl.SSLContext:
    """Return a context that trusts the CA in a PEM file (None: the system's CAs). Raises BadArgument if the file is unusable."""
    try:
        return client_context(None if path is None else read_input(path, MAX_CA_BYTES).decode())
    except OSError as error:
        reason = "expected certificates in PEM" if isinstance(error, ssl.SSLError) else error.strerror or error
        raise BadArgument(f"{path}: {reason}") from None
    except ValueError:
        raise BadArgument(f"{path}: expected certificates in PEM") from None


def load_pem(context: ssl.SSLContext, pem: bytes, password: Callable[[], str] | None = None) -> None:
    """Load the first certificate in `pem`, and its key, into a context. Raises ssl.SSLError if that fails.

    The `ssl` module reads keys only from files. So the key is written to a file in memory that other processes cannot see.
    """
    file = os.memfd_create("diamant-tls-key")
    try:
        os.write(file, pem)
        context.load_cert_chain(f"/proc/self/fd/{file}", password=password)
    finally:
        os.close(file)
