"""The table of configurations of TLS, Kafka's names.

A listener may have values of its own, `listener.name.inside.ssl.client.auth`. The HTTP port has the same names,
`diamant.http.ssl.*`.

Source: SslConfigs, BrokerSecurityConfigs of Kafka 4.3.
"""

from __future__ import annotations

from dataclasses import replace

from diamant.broker.config.config_key import ConfigKey, ConfigType, any_of, list_of

_BOOLEAN, _STRING, _LIST, _PASSWORD = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.LIST, ConfigType.PASSWORD

HTTP_PREFIX = "diamant.http."

_STORES = ("ssl.keystore.", "ssl.key.", "ssl.truststore.")

_OF_A_PORT = (
    ConfigKey(
        "ssl.keystore.location",
        _STRING,
        None,
        "The file with the broker's private key and its certificates: PEM, or PKCS12. Known by its contents.",
        is_dynamic=True,
    ),
    ConfigKey(
        "ssl.keystore.type",
        _STRING,
        "JKS",
        "PEM or PKCS12; `ssl.keystore.key` needs PEM. JKS, which is Kafka's default, stands for what the file turns out to be; a "
        "file that is JKS indeed is refused, with the command that converts it.",
        is_dynamic=True,
    ),
    ConfigKey("ssl.keystore.password", _PASSWORD, None, "Password of a PKCS12 key store.", is_dynamic=True),
    ConfigKey(
        "ssl.key.password",
        _PASSWORD,
        None,
        "What decrypts the private key in PEM, if it is encrypted.",
        is_dynamic=True,
    ),
    ConfigKey(
        "ssl.keystore.key", _PASSWORD, None, "The private key itself, in PEM, instead of a file.", is_dynamic=True
    ),
    ConfigKey(
        "ssl.keystore.certificate.chain",
        _PASSWORD,
        None,
        "The certificates that go with `ssl.keystore.key`, in PEM, the broker's own first.",
        is_dynamic=True,
    ),
    ConfigKey(
        "ssl.truststore.location",
        _STRING,
        None,
        "The file with the certificates whose clients are trusted: PEM, or PKCS12. For `ssl.client.auth`.",
        is_dynamic=True,
    ),
    ConfigKey("ssl.truststore.type", _STRING, "JKS", "As `ssl.keystore.type`.", is_dynamic=True),
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
        "Whether clients show a certificate: required, requested (who shows none is ANONYMOUS), none. Beside SASL only the "
        "listener's own setting counts. Diamant demands a trust store for it; Kafka would trust every CA that Java trusts.",
        any_of("required", "requested", "none"),
        is_dynamic=True,
    ),
    ConfigKey(
        "ssl.enabled.protocols",
        _LIST,
        ["TLSv1.2", "TLSv1.3"],
        "Versions of TLS.",
        list_of("TLSv1.2", "TLSv1.3"),
        is_dynamic=True,
    ),
    ConfigKey(
        "ssl.cipher.suites",
        _LIST,
        [],
        "The cipher suites that are allowed, by their standard names (`TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384`) or OpenSSL's; "
        "empty: what OpenSSL finds good. With a choice among those of TLS 1.3 a client that agrees on another one is cut off.",
        is_dynamic=True,
    ),
)

TLS = "diamant.tls"

SSL_CONFIGS = (
    ConfigKey(
        TLS,
        _BOOLEAN,
        False,
        "For tests: listeners with TLS that have no key store get a certificate of a CA that lives as long as the broker, and "
        "trust the clients that this CA knows. Addresses without a listener's name are those of SSL listeners then. "
        "`BrokerConfig(tls=True)` sets it.",
    ),
    *_OF_A_PORT,
    ConfigKey(
        "ssl.principal.mapping.rules",
        _STRING,
        "DEFAULT",
        "From the subject of a client's certificate to the name of its principal: rules separated by commas, "
        "`RULE:pattern/replacement/` with L or U for small or large letters, or `DEFAULT` for the subject as it is.",
    ),
    ConfigKey(
        "ssl.allow.dn.changes",
        _BOOLEAN,
        False,
        "A key store that is replaced while the broker runs may have a certificate with another subject.",
    ),
    ConfigKey(
        "ssl.allow.san.changes",
        _BOOLEAN,
        False,
        "A key store that is replaced while the broker runs may lack some of the former's alternative names.",
    ),
    *(
        replace(
            key,
            name=f"{HTTP_PREFIX}{key.name}",
            documentation="TLS of the HTTP port, which it has if there is a key store: "
            f"as `{key.name}`, whose value does not count here.",
            is_dynamic=key.name.startswith(_STORES),
        )
        for key in _OF_A_PORT
    ),
)
