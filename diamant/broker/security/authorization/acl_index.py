"""The index of a broker's ACLs, which decides whether an operation on a resource is allowed.

Theory of operation. Patterns are looked up by name: the literal name, the wildcard, and one prefix for each length that any
prefixed pattern of the resource type has. For each pattern found, entries are looked up by principal (the client's and `User:*`)
and by host: the client's address, `*`, and one range for each prefix length that any range has. So the cost grows with the number
of different pattern lengths times the number of different range lengths, but not with the number of ACLs.

Memory: about 1 KiB per ACL.

Source: StandardAuthorizerData.findAclRule and findResult; Authorizer.authorizeByResourceType (KIP-679).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, TypeAlias

from diamant.broker.acl import (
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from diamant.broker.security.authorization.acl_hosts import AddressRange, HostKey, address_of, host_key

_IMPLIED_BY = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}),
}
"""Maps an operation to those whose ALLOW also allows it. A DENY affects only its own operation, or every one if it denies ALL."""

Pattern: TypeAlias = tuple[ResourceType, PatternType, str]


class AclIndex:
    """All ACLs by resource and principal. Belongs to the loop thread."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._entries: dict[tuple[Pattern, str, HostKey], set[Acl]] = defaultdict(set)
        self._patterns: Counter[Pattern] = Counter()
        self._prefix_lengths: dict[ResourceType, Counter[int]] = defaultdict(Counter)
        self._by_principal: dict[tuple[ResourceType, str, HostKey], set[Acl]] = defaultdict(set)
        self._range_lengths: Counter[tuple[int, int]] = Counter()
        """The number of ACLs whose host is a range, by the range's `bits` and `length`."""
        for acl in acls:
            self.add(acl)

    def add(self, acl: Acl) -> None:
        """Add an ACL. Idempotent."""
        pattern, host = _pattern(acl), host_key(acl.host)
        entries = self._entries[pattern, acl.principal, host]
        if acl in entries:
            return
        entries.add(acl)
        self._by_principal[acl.resource_type, acl.principal, host].add(acl)
        self._patterns[pattern] += 1
        if isinstance(host, AddressRange):
            self._range_lengths[host.bits, host.length] += 1
        if acl.pattern_type == PatternType.PREFIXED:
            self._prefix_lengths[acl.resource_type][len(acl.resource_name)] += 1

    def remove(self, acl: Acl) -> None:
        """Remove an ACL. Idempotent."""
        pattern, host = _pattern(acl), host_key(acl.host)
        entries = self._entries.get((pattern, acl.principal, host), set())
        if acl not in entries:
            return
        entries.remove(acl)
        if not entries:
            del self._entries[pattern, acl.principal, host]
        of_principal = self._by_principal[acl.resource_type, acl.principal, host]
        of_principal.remove(acl)
        if not of_principal:
            del self._by_principal[acl.resource_type, acl.principal, host]
        _count_down(self._patterns, pattern)
        if isinstance(host, AddressRange):
            _count_down(self._range_lengths, (host.bits, host.length))
        if acl.pattern_type == PatternType.PREFIXED:
            _count_down(self._prefix_lengths[acl.resource_type], len(acl.resource_name))

    def decision(
        self, principals: Sequence[str], hosts: Sequence[str], operation: Operation, resource: ResourceType, name: str
    ) -> bool | None:
        """Return True if allowed, False if denied, None if no ACL of any principal covers this resource.

        `principals` and `hosts`: the values, including wildcards, with which an ACL matches the client. The first host is the
        client's address; the ranges that cover it are added here.
        """
        keys = self._host_keys(hosts)
        is_allowed = has_acls = False
        covering = _IMPLIED_BY.get(operation, (operation, Operation.ALL))
        for pattern in self._covering(resource, name):
            if pattern not in self._patterns:
                continue
            has_acls = True
            for principal, host in product(principals, keys):
                for acl in self._entries.get((pattern, principal, host), ()):
                    if acl.permission == PermissionType.ALLOW:
                        is_allowed = is_allowed or acl.operation in covering
                    elif acl.operation in (operation, Operation.ALL):
                        return False
        return is_allowed if has_acls else None

    def allows_any(
        self, principals: Sequence[str], hosts: Sequence[str], operation: Operation, resource: ResourceType
    ) -> bool:
        """True if the operation is allowed for at least one name of this resource type. Arguments as in `decision`."""
        allowed: set[tuple[PatternType, str]] = set()
        denied: set[tuple[PatternType, str]] = set()
        for principal, host in product(principals, self._host_keys(hosts)):
            for acl in self._by_principal.get((resource, principal, host), ()):
                if acl.operation in (operation, Operation.ALL):
                    patterns = allowed if acl.permission == PermissionType.ALLOW else denied
                    patterns.add((acl.pattern_type, acl.resource_name))
        everything = (PatternType.LITERAL, WILDCARD)
        if everything in denied:
            return False
        if everything in allowed:
            return True
        return any(pattern not in denied and not _is_below_prefix(pattern[1], denied) for pattern in allowed)

    def _host_keys(self, hosts: Sequence[str]) -> list[HostKey]:
        """Return `hosts` and the ranges that cover the client's address, which is the first of `hosts`."""
        keys: list[HostKey] = [*hosts]
        if self._range_lengths and (address := address_of(hosts[0])) is not None:
            bits, number = address
            keys += [
                AddressRange(bits, length, number >> bits - length)
                for of_bits, length in self._range_lengths
                if of_bits == bits
            ]
        return keys

    def _covering(self, resource: ResourceType, name: str) -> Iterator[Pattern]:
        yield resource, PatternType.LITERAL, name
        if name != WILDCARD:
            yield resource, PatternType.LITERAL, WILDCARD
        for length in self._prefix_lengths.get(resource, ()):
            if length <= len(name):
                yield resource, PatternType.PREFIXED, name[:length]


def _pattern(acl: Acl) -> Pattern:
    return acl.resource_type, acl.pattern_type, acl.resource_name


def _count_down(counts: Counter[Any], key: Any) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _is_below_prefix(name: str, denied: set[tuple[PatternType, str]]) -> bool:
    return any((PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))
