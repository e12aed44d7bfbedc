"""Rules from a certificate's name to a principal's."""

from __future__ import annotations

import pytest

from diamant.broker.security.identity.mapping_rules import MappingRules, NoRuleApplies

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
    """The first rule that fits counts; groups, escapes and letters are Java's."""
    assert MappingRules(rules).name_of(name) == mapped


@pytest.mark.parametrize("rules", ["RULE:^CN=nobody$/x/", ""])
def test_a_name_that_no_rule_fits_has_no_principal(rules: str) -> None:
    """The error names it and the rules."""
    with pytest.raises(NoRuleApplies, match="no rule applies to CN=bob"):
        MappingRules(rules).name_of("CN=bob")


@pytest.mark.parametrize(
    "rules", ["DEFAULT,nonsense", "RULE:a/b", "RULE:a/b/X", "rule:a/b/", "DEFAULTS", "RULE:x/y/LU", "RULE:(/b/"]
)
def test_what_is_no_rule_is_refused(rules: str) -> None:
    """Kafka refuses the same."""
    with pytest.raises(ValueError, match="is no "):
        MappingRules(rules)
