"""The authorizer: compared with a naive implementation of the StandardAuthorizer's rules, and bounded in memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import pytest

from diamant.broker.acl import Acl, Operation, PatternType, PermissionType, ResourceType
from diamant.broker.security.authorization import authorizer as module
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import ClientAccess, UndeclaredPermission, allowed_names, check
from diamant.broker.security.authorization.authorizer import Authorizer, Client
from diamant.broker.security.authorization.permissions import Permission
from diamant.broker.security.identity.principal import Principal
from diamant.protocol.errors import ErrorCode, KafkaError
from tests.effort import examples

TOPIC = ResourceType.TOPIC
ALICE: Client = (Principal("User", "alice"), "10.0.0.1")
BOB: Client = (Principal("User", "bob"), "10.0.0.2")
RANGES = ("10.0.0.0/8", "10.0.0.3/31", "10.0.0.2/32", "0.0.0.0/0", "::/0", "2001:db8::/32", "2001:db9::/32")
IMPLIES_DESCRIBE = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}


def acl(
    principal: str = "User:alice",
    operation: Operation = Operation.READ,
    name: str = "users",
    *,
    kind: ResourceType = TOPIC,
    pattern: PatternType = PatternType.LITERAL,
    host: str = "*",
    permission: PermissionType = PermissionType.ALLOW,
) -> Acl:
    """Return an ACL; by default alice may read topic users."""
    return Acl(kind, name, pattern, principal, host, operation, permission)


def authorizer(*acls: Acl, super_users: Sequence[str] = (), allows_by_default: bool = False) -> Authorizer:
    """Return an authorizer with these ACLs."""
    return Authorizer(super_users, allows_by_default=allows_by_default, acls=acls)


def naive(acls: Sequence[Acl], client: Client, permission: Permission, name: str, *, allows_by_default: bool) -> bool:
    """Return the rules implemented literally: every ACL is examined."""
    about = [one for one in acls if one.resource_type == permission.resource and _covers(one, name)]
    mine = [one for one in about if one.principal in (str(client[0]), "User:*") and _covers_host(one.host, client[1])]
    for one in mine:
        if one.permission == PermissionType.DENY and one.operation in (permission.operation, Operation.ALL):
            return False
    for one in mine:
        if one.permission == PermissionType.ALLOW and (
            one.operation in (permission.operation, Operation.ALL)
            or (permission.operation == Operation.DESCRIBE and one.operation in IMPLIES_DESCRIBE)
            or (permission.operation == Operation.DESCRIBE_CONFIGS and one.operation == Operation.ALTER_CONFIGS)
        ):
            return True
    return allows_by_default and not about


def _covers_host(host: str, address: str) -> bool:
    if "/" in host:
        return ip_address(address) in ip_network(host, strict=False)
    return host in (address, "*")


def _covers(one: Acl, name: str) -> bool:
    if one.pattern_type == PatternType.PREFIXED:
        return name.startswith(one.resource_name)
    return one.resource_name in (name, "*")


def test_random_acls_decide_as_the_rules_say() -> None:
    """Random ACLs have literal, prefixed and wildcard patterns, ALLOW and DENY, hosts and implied operations, and change."""
    asked = [
        permissions.READ_TOPIC,
        permissions.DESCRIBE_TOPIC,
        permissions.DESCRIBE_CONFIGS_TOPIC,
        permissions.WRITE_TOPIC,
        permissions.READ_GROUP,
    ]
    for seed in range(examples(300)):
        rng = random.Random(seed)
        acls = list(
            {
                acl(
                    rng.choice(["User:alice", "User:bob", "User:*", "Group:alice"]),
                    rng.choice([Operation.ALL, Operation.READ, Operation.DESCRIBE, Operation.ALTER_CONFIGS]),
                    rng.choice(["*", "a", "ab", "abc", "b"]),
                    kind=rng.choice([TOPIC, TOPIC, ResourceType.GROUP]),
                    pattern=rng.choice([PatternType.LITERAL, PatternType.PREFIXED]),
                    host=rng.choice(["*", "*", "10.0.0.1", *RANGES]),
                    permission=rng.choice([PermissionType.ALLOW, PermissionType.ALLOW, PermissionType.DENY]),
                )
                for _ in range(rng.randrange(8))
            }
        )
        allows_by_default = rng.random() < 0.3
        decides = authorizer(*acls, allows_by_default=allows_by_default)
        gone = acls[: rng.randrange(len(acls) + 1)]
        for current in (acls, acls[len(gone) :]):
            for client in (ALICE, BOB, (ALICE[0], "2001:db8::1")):
                for permission in asked:
                    for name in ("a", "ab", "abcd", "b", "c", "*"):
                        expected = naive(current, client, permission, name, allows_by_default=allows_by_default)
                        assert decides.allows(client, permission, name) == expected, (
                            seed,
                            current,
                            client,
                            permission,
                            name,
                        )
            decides.remove(gone)


def test_a_super_user_may_do_what_is_denied() -> None:
    """A super user may do everything, even without ACLs."""
    decides = authorizer(acl(permission=PermissionType.DENY, operation=Operation.ALL), super_users=["User:alice"])
    assert decides.allows(ALICE, permissions.READ_TOPIC, "users")
    assert decides.allows(ALICE, permissions.ALTER_CLUSTER)
    assert not decides.allows(BOB, permissions.ALTER_CLUSTER)


@pytest.mark.parametrize("is_denied", [False, True])
def test_an_operation_on_a_resource_of_any_name(is_denied: bool) -> None:
    """An idempotent producer needs WRITE on some topic. A DENY that covers all allowed ones removes it; test_answers.py has
    Kafka's answers to patterns, hosts and principals ("any write").
    """
    write = acl(operation=Operation.WRITE)
    decides = authorizer(write, *([write._replace(permission=PermissionType.DENY)] if is_denied else []))
    access = ClientAccess(decides, ALICE, [permissions.WRITE_TOPIC], "a test")
    for _ in range(2):
        assert access.allows_any(permissions.WRITE_TOPIC) is not is_denied


def test_hosts_of_ipv6_are_known_in_both_notations() -> None:
    """Kafka compares Java's form with all eight groups; people write the short form."""
    client = (ALICE[0], "::1")
    for host in ("::1", "0:0:0:0:0:0:0:1"):
        assert authorizer(acl(host=host)).allows(client, permissions.READ_TOPIC, "users")
    assert not authorizer(acl(host="::2")).allows(client, permissions.READ_TOPIC, "users")


def test_authorized_operations_are_those_that_are_allowed() -> None:
    """Bit n stands for operation n; READ implies DESCRIBE."""
    access = ClientAccess(authorizer(acl()), ALICE, [], "a test")
    assert access.operations(TOPIC, "users") == 1 << Operation.READ | 1 << Operation.DESCRIBE
    assert access.operations(TOPIC, "others") == 0


def test_a_need_that_is_not_declared_cannot_be_asked_for() -> None:
    """A handler that checks an undeclared need fails its tests."""
    access = ClientAccess(authorizer(), ALICE, [permissions.READ_TOPIC], "Fetch")
    assert not access.allows(permissions.READ_TOPIC, "users")
    with pytest.raises(UndeclaredPermission, match="WRITE on TOPIC is not declared for Fetch in the API table"):
        access.allows(permissions.WRITE_TOPIC, "users")
    with pytest.raises(UndeclaredPermission):
        access.allows_any(permissions.WRITE_TOPIC)


def test_a_change_of_acls_is_followed_at_once() -> None:
    """Cached decisions are dropped, and the generation invalidates everything derived from them."""
    decides = authorizer()
    assert not decides.allows(ALICE, permissions.READ_TOPIC, "users")
    before = decides.generation
    decides.add([acl()])
    assert decides.allows(ALICE, permissions.READ_TOPIC, "users")
    decides.remove([acl()])
    assert not decides.allows(ALICE, permissions.READ_TOPIC, "users")
    assert decides.generation > before


def test_denials_are_told_each_time_and_filters_are_not() -> None:
    """Cached denials are reported, too. Filtering a list is not a denial."""
    told: list[tuple[Client, Permission, str]] = []
    decides = authorizer()
    decides.on_denial = lambda client, permission, name: told.append((client, permission, name))
    access = ClientAccess(decides, ALICE, [permissions.READ_TOPIC], "a test")
    assert not access.allows(permissions.READ_TOPIC, "users", is_asked=False)
    assert told == []
    assert not access.allows(permissions.READ_TOPIC, "users")
    with pytest.raises(KafkaError) as caught:
        check(access, permissions.READ_TOPIC, "users")
    assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert told == [(ALICE, permissions.READ_TOPIC, "users")] * 2
    assert allowed_names(access, permissions.READ_TOPIC, ["users", "users"]) == set()
    assert len(told) == 3


def test_remembered_decisions_are_bounded() -> None:
    """A client that uses ever new names makes the authorizer clear its cache, not grow."""
    decides = authorizer(acl(name="t", pattern=PatternType.PREFIXED))
    before = decides.generation
    for number in range(module.MAX_DECISIONS + 10):
        decides.allows(ALICE, permissions.READ_TOPIC, f"t{number}")
    assert decides.generation == before + 1
    assert decides.allows(ALICE, permissions.READ_TOPIC, "t1")


def test_a_range_denies_and_allows_the_addresses_that_it_covers() -> None:
    """A DENY for a range overrides every ALLOW, also on the question about any resource; clients outside of it are unaffected."""
    decides = authorizer(
        acl(operation=Operation.WRITE),
        acl(operation=Operation.WRITE, host="10.0.0.0/8", name="orders"),
        acl(operation=Operation.ALL, host="10.0.0.0/31", name="*", permission=PermissionType.DENY),
    )
    inside, beside, outside = ((ALICE[0], host) for host in ("10.0.0.1", "10.0.0.2", "11.0.0.1"))
    asked = [
        [decides.allows(client, permissions.WRITE_TOPIC, name) for name in ("users", "orders")]
        for client in (inside, beside, outside)
    ]
    assert asked == [[False, False], [True, True], [True, False]]
    assert [decides.decide_any(one, permissions.WRITE_TOPIC, {}) for one in (inside, beside, outside)] == [
        False,
        True,
        True,
    ]


def test_lookups_do_not_depend_on_the_number_of_ranges() -> None:
    """However many ACLs a topic has, those of the client's ranges are looked at."""
    many = [acl(host=f"10.{n >> 8}.{n & 255}.0/24", permission=PermissionType.DENY) for n in range(1, 5000)]
    decides = authorizer(acl(), *many)
    looked_up = Counter(len(decides.index._host_keys([host, "*"])) for host in ("10.0.0.1", "10.9.9.9", "::1"))
    assert looked_up == {3: 2, 2: 1}
    assert decides.allows(ALICE, permissions.READ_TOPIC, "users")
    assert not decides.allows((ALICE[0], "10.9.9.9"), permissions.READ_TOPIC, "users")
    decides.remove(many)
    assert decides.allows((ALICE[0], "10.9.9.9"), permissions.READ_TOPIC, "users")
    assert not decides.index._range_lengths
