"""Client properties files with Kafka's names, like those for `--command-config` of Kafka's own tools.

Supports PLAIN, SCRAM, OAUTHBEARER with the token in a file, and TLS with PEM stores. Any other property is refused by name,
so that no client silently ignores a setting of its file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from diamant.broker.client.bootstrap import default_bootstrap
from diamant.broker.client.login import OAUTHBEARER, PREFERRED, Login
from diamant.broker.operation_errors import BadArgument
from diamant.storage.input_file import read_input
from diamant.storage.properties import parse_properties

if TYPE_CHECKING:
    import ssl

COMMAND_CONFIG_HELP = (
    "A client's properties file with Kafka's names, in place of --user and --ca: PLAIN, SCRAM, OAUTHBEARER with a token in a "
    "file, PEM."
)
MAX_BYTES = 4 * 1024 * 1024
_MODULES = {"PlainLoginModule", "ScramLoginModule", "OAuthBearerLoginModule"}
_JAAS = re.compile(r'\s*[\w.]*?(\w+)\s+required\b((?:\s+[\w.]+\s*=\s*(?:"(?:[^"\\]|\\.)*"|[^\s;]+))*)\s*;?\s*')
_OPTION = re.compile(r'([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;]+))')
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_TOKEN_HANDLER = "OAuthBearerLoginCallbackHandler"  # noqa: S105  (the name of a class)
_STORES = {
    "truststore": ("ssl.truststore.certificates",),
    "keystore": ("ssl.keystore.certificate.chain", "ssl.keystore.key"),
}
"""For each store, the properties that can hold its PEM instead of naming a file."""
_SSL_NAMES = {
    *(f"ssl.{store}.{name}" for store in _STORES for name in ("type", "location")),
    *(name for names in _STORES.values() for name in names),
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
}
_SASL_NAMES = {
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.login.callback.handler.class",
}
_NAMES = {"bootstrap.servers", "security.protocol", *_SSL_NAMES, *_SASL_NAMES}


class ClientProperties(NamedTuple):
    """How to connect, as read from a file. A field is None if the file does not set it."""

    bootstrap: str | None
    login: Login | None
    tls: ssl.SSLContext | None


def read_client_properties(path: str) -> ClientProperties:
    """Read a properties file. Raises BadArgument if a setting is not supported or not valid, OSError if a file cannot be read."""
    found = parse_properties(_text(path))
    protocol = found.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise BadArgument(f"{path}: security.protocol={protocol}: expected one of {', '.join(_PROTOCOLS)}")
    _check_kinds(path, found, protocol)
    if unknown := sorted(found.keys() - _NAMES):
        names = ", ".join(sorted(_NAMES))
        raise BadArgument(
            f"{path}: {', '.join(unknown)}: not understood; remove it from a copy of the file. Expected {names}"
        )
    return ClientProperties(
        found.get("bootstrap.servers"),
        _login(path, found) if protocol.startswith("SASL_") else None,
        _tls(path, found) if protocol.endswith("SSL") else None,
    )


def configured(path: str, bootstrap: str) -> tuple[str, Login | None, ssl.SSLContext | None]:
    """Return the address, login and TLS in a file. A `bootstrap` other than the default takes precedence. Raises BadArgument."""
    try:
        found = read_client_properties(path)
    except BadArgument as error:
        raise BadArgument(f"--command-config {error}") from None
    except OSError as error:
        raise BadArgument(f"--command-config: {error.filename or path}: {error.strerror or error}") from None
    return (found.bootstrap or bootstrap) if bootstrap == default_bootstrap() else bootstrap, found.login, found.tls


def _check_kinds(path: str, found: dict[str, str], protocol: str) -> None:
    """Refuse unsupported mechanisms and stores first, so that the error names them, and not merely one of their properties."""
    mechanism = found.get("sasl.mechanism", "GSSAPI, the default")
    if protocol.startswith("SASL_") and mechanism not in (*PREFERRED, OAUTHBEARER):
        raise BadArgument(f"{path}: sasl.mechanism={mechanism}: expected one of {', '.join((*PREFERRED, OAUTHBEARER))}")
    if not protocol.endswith("SSL"):
        return
    for store, inlines in _STORES.items():
        location = f"ssl.{store}.location"
        given = [name for name in (location, *inlines) if name in found]
        kind = found.get(f"ssl.{store}.type", "JKS, the default")
        if given and kind != "PEM":
            raise BadArgument(
                f"{path}: ssl.{store}.type={kind}: expected PEM; openssl pkcs12 and keytool -exportcert -rfc convert other stores"
            )
        if location in given and len(given) > 1:
            raise BadArgument(
                f"{path}: {', '.join(given)}: expected either the file, or certificates in the properties"
            )


def _login(path: str, found: dict[str, str]) -> Login:
    mechanism = found["sasl.mechanism"]
    if mechanism == OAUTHBEARER:
        handler = found.get("sasl.login.callback.handler.class", _TOKEN_HANDLER)
        url = found.get("sasl.oauthbearer.token.endpoint.url", "")
        if not url.startswith("file:") or handler.rpartition(".")[2] != _TOKEN_HANDLER:
            raise BadArgument(
                f"{path}: sasl.oauthbearer.token.endpoint.url: expected file:/path of a file with the token, "
                f"and no handler other than {_TOKEN_HANDLER}"
            )
        return Login("", _text(re.sub(r"^file:(//)?", "", url)).strip(), OAUTHBEARER)
    match = _JAAS.fullmatch(found.get("sasl.jaas.config", ""))
    if match is None or match[1] not in _MODULES:
        raise BadArgument(f'{path}: sasl.jaas.config: expected MODULE required username="..." password="...";')
    options = {name: re.sub(r"\\(.)", r"\1", quoted) or plain for name, quoted, plain in _OPTION.findall(match[2])}
    if options.keys() != {"username", "password"}:
        raise BadArgument(
            f"{path}: sasl.jaas.config: expected username and password, found {', '.join(sorted(options)) or 'none'}"
        )
    return Login(options["username"], options["password"], mechanism)


def _tls(path: str, found: dict[str, str]) -> ssl.SSLContext:
    import ssl

    from diamant.broker.client.client_config import client_context, load_pem

    def pem(store: str) -> str | None:
        location = found.get(f"ssl.{store}.location")
        texts = [found[name] for name in _STORES[store] if name in found]
        return _text(location) if location is not None else "\n".join([*texts, ""]) if texts else None

    try:
        context = client_context(pem("truststore"))
    except (ssl.SSLError, ValueError) as error:
        raise BadArgument(f"{path}: ssl.truststore: expected certificates in PEM: {error}") from None
    own = pem("keystore")
    if own is not None:
        password = found.get("ssl.key.password", "")
        try:
            load_pem(context, own.encode(), lambda: password)
        except (ssl.SSLError, ValueError):
            raise BadArgument(f"{path}: ssl.keystore: {_key_problem(own)}") from None
    if not found.get("ssl.endpoint.identification.algorithm", "https"):
        context.check_hostname = False
    return context


def _key_problem(own: str) -> str:
    """Return why the client's certificate and key cannot be loaded."""
    missing = [what for what in ("CERTIFICATE", "PRIVATE KEY") if f"{what}-----" not in own]
    if missing:
        return f"it has no {' and no '.join(missing)}: expected the client's certificate and its key, both in PEM"
    if "ENCRYPTED" in own:
        return "its key is encrypted: expected the password that opens it in ssl.key.password"
    return "expected a certificate and the key that belongs to it, both in PEM"


def _text(path: str) -> str:
    try:
        return read_input(path, MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise BadArgument(f"{path}: expected text in UTF-8") from None
