"""Principals: the name in a certificate in Java's form, and the mapping rules for it."""

from __future__ import annotations

import pytest

from diamant.broker.security.identity.distinguished_name import subject_of, text_of
from diamant.broker.security.identity.mapping_rules import MappingRules, NoRuleApplies
from diamant.broker.security.tls.throw_away import ThrowAwayCa

NAMES = [
    (
        "3064310b300906035504061302444531143012060355040a0c0b4669726d612c20496e632e31193017060355040b0c10612b"
        "623d2263223c643e3b655c662367310e300c06035504030c05416c6963653114301206092a864886f70d0109011605614062"
        "2e63",
        '1.2.840.113549.1.9.1=#16056140622e63,CN=Alice,OU=a\\+b\\=\\"c\\"\\<d\\>\\;e\\\\f\\#g,O=Firma\\, Inc.,C=DE',
    ),
    (
        "304c31313010060a0992268993f22c6401010c027531301d06035504030c16206c656164696e6720616e6420747261696c69"
        "6e672031173015060a0992268993f22c64011916076578616d706c65",
        "DC=example,UID=u1+CN=\\ leading and trailing\\ ",
    ),
    (
        "3044310e300c06035504030c052368617368310f300d06035504080c0642617965726e3111300f06035504070c084dc3bc6e"
        "6368656e310e300c06035504090c055765672031",
        "STREET=Weg 1,L=München,ST=Bayern,CN=\\#hash",
    ),
    (
        "303331133011060b2b0601040182373c02010313024445311c301a06035504030c13e697a5e69cac202074776f2020737061636573",
        "CN=日本  two  spaces,1.3.6.1.4.1.311.60.2.1.3=#13024445",
    ),
    (
        "303d312d302b06035504031c24000000750000006e0000006900000076000000650000007200000073000000610000006c31"
        "0c300a060355040a1403743631",
        "O=t61,CN=#1c24000000750000006e0000006900000076000000650000007200000073000000610000006c",
    ),
    (
        "3024310f300d06035504030c066e756c00696e3111300f060355040a0c08097461620a6e6c20",
        "O=\ttab\nnl\\ ,CN=nul\\00in",
    ),
    (
        "301a310a300806035504030c0120310c300a060355040a0c03202020",
        "O=\\ \\ \\ ,CN=\\ ",
    ),
]
"""A Name in DER, and what X500Principal.getName() of OpenJDK 17 makes of it."""


@pytest.mark.parametrize(("der", "text"), NAMES, ids=[text for _, text in NAMES])
def test_the_text_is_javas(der: str, text: str) -> None:
    """Order, keywords, escapes, several attributes in one part, and attributes without a keyword are as in Java."""
    assert text_of(bytes.fromhex(der)) == text


def test_a_name_that_ends_early_is_refused() -> None:
    """A name that ends early raises ValueError, as callers expect."""
    with pytest.raises(ValueError, match="ends early"):
        text_of(bytes.fromhex(NAMES[0][0])[:-3])


def test_the_subject_of_a_certificate() -> None:
    """The subject is read from a whole certificate."""
    import ssl

    issued = ThrowAwayCa().issue("alice")
    assert subject_of(ssl.PEM_cert_to_DER_cert(issued.certificate)) == "CN=alice"


DUKE = "CN=Duke,OU=JavaSoft,O=Sun Microsystems,L=a,ST=b,C=US"

MAPPED = [
    ("DEFAULT", "CN=alice,O=x", "CN=alice,O=x"),
    ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=kafka,OU=ServiceUsers,O=x", "kafka"),
    ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=kafka,OU=Other", "CN=kafka,OU=Other"),
    ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L", DUKE, "duke@javasoft"),
    ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "O=x,cn=john.doe", "JOHN.DOE"),
    ("RULE:^CN=([^,]*).*$/u:$1/", "CN=bob", "u:bob"),
    (" RULE:^CN=a$/x/ , RULE:^CN=b$/y/", "CN=b", "y"),
    ("RULE:^CN=(.*)$/$2x/", "CN=b", "$2x"),
    ("RULE:^CN=(.*)$/$10/", "CN=b", "b0"),
    ("RULE:^CN=(?<n>.*)$/${n}!/", "CN=b", "b!"),
    (r"RULE:^CN=a\/b$/slash\/es/", "CN=a/b", "slash/es"),
    ("RULE:CN=(.*)/$1/L,RULE:(.*)/all/", "O=Q", "allall"),
    (",DEFAULT", "CN=q", "CN=q"),
    ("RULE:a*/x/", "aaa", "xx"),
    ("RULE:^CN=(a|(b))$/$2-/", "CN=a", "-"),
    (r"RULE:CN=(.*)/\$1/", "CN=q", "$1"),
]
"""What SslPrincipalMapper of Kafka 4.3.1 makes of rules and a name."""


@pytest.mark.parametrize(("rules", "name", "mapped"), MAPPED)
def test_a_name_is_mapped_as_by_kafka(rules: str, name: str, mapped: str) -> None:
    """The first matching rule applies; groups, escapes and case are Java's."""
    assert MappingRules(rules).name_of(name) == mapped


@pytest.mark.parametrize("rules", ["RULE:^CN=nobody$/x/", ""])
def test_a_name_that_no_rule_fits_has_no_principal(rules: str) -> None:
    """The error has the name and the rules."""
    with pytest.raises(NoRuleApplies, match="no rule applies to CN=bob"):
        MappingRules(rules).name_of("CN=bob")


@pytest.mark.parametrize(
    "rules", ["DEFAULT,nonsense", "RULE:a/b", "RULE:a/b/X", "rule:a/b/", "DEFAULTS", "RULE:x/y/LU", "RULE:(/b/"]
)
def test_an_invalid_rule_is_refused(rules: str) -> None:
    """Kafka refuses the same texts."""
    with pytest.raises(ValueError, match="is not a "):
        MappingRules(rules)
