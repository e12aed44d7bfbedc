"""The short form of ACLs can be parsed and formatted, and each undoes the other."""

from __future__ import annotations

import pytest

from diamant.broker.acl import Acl, Operation, PatternType, PermissionType, ResourceType, parse_acls, parse_all

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("User:alice READ topic users", Acl(TOPIC, "users", LITERAL, "User:alice", "*", Operation.READ, ALLOW)),
        ("User:alice allow read topic us*", Acl(TOPIC, "us", PREFIXED, "User:alice", "*", Operation.READ, ALLOW)),
        ("User:* DENY ALL group * from 10.0.0.7", Acl(GROUP, "*", LITERAL, "User:*", "10.0.0.7", Operation.ALL, DENY)),
        (
            "User:ops ALTER cluster",
            Acl(ResourceType.CLUSTER, "kafka-cluster", LITERAL, "User:ops", "*", Operation.ALTER, ALLOW),
        ),
        (
            'User:"a b" WRITE transactional-id "x y"',
            Acl(ResourceType.TRANSACTIONAL_ID, "x y", LITERAL, "User:a b", "*", Operation.WRITE, ALLOW),
        ),
        (
            "User:CN=a,O=b DESCRIBE_CONFIGS topic t",
            Acl(TOPIC, "t", LITERAL, "User:CN=a,O=b", "*", Operation.DESCRIBE_CONFIGS, ALLOW),
        ),
    ],
)
def test_the_short_form_is_read_and_written(text: str, expected: Acl) -> None:
    """ALLOW is the default, an asterisk ends a prefix, the cluster needs no name."""
    assert parse_acls(text) == [expected]
    assert parse_acls(str(expected)) == [expected]


def test_several_operations_are_several_acls() -> None:
    """Several operations become several ACLs, as with repeated `--operation` of kafka-acls.sh."""
    assert [acl.operation for acl in parse_acls("User:a READ,WRITE,describe-configs topic t")] == [
        Operation.READ,
        Operation.WRITE,
        Operation.DESCRIBE_CONFIGS,
    ]
    alone = parse_acls("User:a READ topic t")
    assert parse_all(["User:a READ topic t", *alone]) == alone * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not an ACL: expected PRINCIPAL"),
        ("User:alice READ", "is not an ACL: expected PRINCIPAL"),
        ("User:alice READ topic users now please", "is not an ACL: expected PRINCIPAL"),
        ("alice READ topic users", "'alice' is not a principal: expected TYPE:NAME"),
        ("User:alice FETCH topic users", "'FETCH' is not a known operation: expected one of ALL, READ"),
        ("User:alice READ table users", "'table' is not a known type of resource: expected one of topic, group"),
        ("User:alice READ topic", "the name of the topic is missing; \\* matches every topic"),
        ("User:alice ALTER cluster mine", "'mine': the cluster's only name is kafka-cluster"),
        ('User:alice READ topic "users', "No closing quotation; expected PRINCIPAL"),
    ],
)
def test_an_invalid_acl_is_refused_with_the_expected_form(text: str, message: str) -> None:
    """The message has the wrong word."""
    with pytest.raises(ValueError, match=message):
        parse_acls(text)
