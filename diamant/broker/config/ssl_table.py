"""The table of the TLS configurations, with Kafka's names.

They can be set for a listener, as `listener.name.inside.ssl.client.auth`, and for the HTTP port, as
`diamant.http.ssl.*`.

Source: SslConfigs, BrokerSecurityConfigs of Kafka 4.3.
"""

from dataclasses import replace

from diamant.storage.config_key import ConfigKey, ConfigType, any_of, list_of

_BOOLEAN, _STRING, _LIST, _PASSWORD = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.LIST, ConfigType.PASSWORD

HTTP_PREFIX = "diamant.http."
HTTP_STORES = (f"{HTTP_PREFIX}ssl.keystore.location", f"{HTTP_PREFIX}ssl.keystore.key")
"""The HTTP port uses TLS if one of these is set."""

_STORES = ("ssl.keystore.", "ssl.key.", "ssl.truststore.")

_OF_A_PORT = (
    ConfigKey(
        "ssl.keystore.location",
        _STRING,
        None,
        "File with the broker's private key and certificate chain: PEM or PKCS12. The format is detected.",
        is_dynamic=True,
    ),
    ConfigKey(
        "ssl.keystore.type",
        _STRING,
        "JKS",
        "PEM or PKCS12; `ssl.keystore.key` needs PEM. With JKS, Kafka's default, the format is detected; a file that really is "
        "JKS is refused, with the command that converts it.",
        is_dynamic=True,
    ),
    ConfigKey("ssl.keystore.password", _PASSWORD, None, "Password of a PKCS12 key store.", is_dynamic=True),
    ConfigKey(
        "ssl.key.password",
        _PASSWORD,
        None,
        "Password of an encrypted private key in PEM.",
        is_dynamic=True,
    ),
    ConfigKey(
        "ssl.keystore.key", _PASSWORD, None, "The private key itself, in PEM, instead of a file.", is_dynamic=True
    ),
    ConfigKey(
        "ssl.keystore.certificate.chain",
        _PASSWORD,
        None,
        "The certificate chain of `ssl.keystore.key`, in PEM, the broker's certificate first.",
        is_dynamic=True,
    ),
    ConfigKey(
        "ssl.truststore.location",
        _STRING,
        None,
        "File with the certificates that verify clients: PEM or PKCS12. For `ssl.client.auth`.",
        is_dynamic=True,
    ),
    ConfigKey("ssl.truststore.type", _STRING, "JKS", "Like `ssl.keystore.type`.", is_dynamic=True),
    ConfigKey("ssl.truststore.password", _PASSWORD, None, "Password of a PKCS12 trust store.", is_dynamic=True),
    ConfigKey(
        "ssl.truststore.certificates",
        _PASSWORD,
        None,
        "The trusted certificates themselves, in PEM, instead of a file.",
        is_dynamic=True,
    ),
    ConfigKey(
        "ssl.client.auth",
        _STRING,
        "none",
        "Client certificates: required, requested (a client without one is ANONYMOUS), none. On listeners with SASL, only the "
        "listener's own setting counts. Diamant needs a trust store for it; Kafka would trust every CA that Java trusts.",
        any_of("required", "requested", "none"),
        is_dynamic=True,
    ),
    ConfigKey(
        "ssl.enabled.protocols",
        _LIST,
        ["TLSv1.2", "TLSv1.3"],
        "Allowed versions of TLS.",
        list_of("TLSv1.2", "TLSv1.3"),
        is_dynamic=True,
    ),
    ConfigKey(
        "ssl.cipher.suites",
        _LIST,
        [],
        "Allowed cipher suites, by their standard names (`TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384`) or OpenSSL's; empty: OpenSSL's "
        "default. A TLS 1.3 connection that negotiates a suite outside the list is closed after the handshake.",
        is_dynamic=True,
    ),
)

TLS = "diamant.tls"

SSL_CONFIGS = (
    ConfigKey(
        TLS,
        _BOOLEAN,
        False,
        "For tests: listeners with TLS but no key store get a certificate from a CA that exists while the broker runs, and trust "
        "clients with certificates from this CA. Addresses without a listener's name then become SSL listeners. "
        "`BrokerConfig(tls=True)` sets it.",
    ),
    *_OF_A_PORT,
    ConfigKey(
        "ssl.principal.mapping.rules",
        _STRING,
        "DEFAULT",
        "Rules that map the subject of a client's certificate to the name of its principal, separated by commas: "
        "`RULE:pattern/replacement/` with L or U for lower or upper case, or `DEFAULT` for the unchanged subject.",
    ),
    ConfigKey(
        "ssl.allow.dn.changes",
        _BOOLEAN,
        False,
        "Allow a new key store, set while the broker runs, to have a certificate with another subject.",
    ),
    ConfigKey(
        "ssl.allow.san.changes",
        _BOOLEAN,
        False,
        "Allow a new key store, set while the broker runs, to lack alternative names of the previous certificate.",
    ),
    *(
        replace(
            key,
            name=f"{HTTP_PREFIX}{key.name}",
            documentation=f"Like `{key.name}`, but for the HTTP port, which uses TLS if it has a key store. "
            f"The value of `{key.name}` does not apply to the HTTP port.",
            is_dynamic=key.name.startswith(_STORES),
        )
        for key in _OF_A_PORT
    ),
)
