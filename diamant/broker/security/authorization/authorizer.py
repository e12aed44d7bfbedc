"""The authorizer: Kafka's StandardAuthorizer over the ACLs of the metadata log.

A super user may do everything. For other users a matching DENY overrides every ALLOW; if no ACL covers the resource,
`allow.everyone.if.no.acl.found` decides. Decisions are cached by client (principal and host), permission and name until an
ACL changes. Bound: MAX_DECISIONS; a full cache is cleared.

    authorizer.allows((principal, host), READ_TOPIC, "users")

Source: StandardAuthorizerData.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from diamant.broker.acl import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    Acl,
    Operation,
    ResourceType,
)
from diamant.broker.security.authorization.acl_index import AclIndex
from diamant.broker.security.authorization.permissions import Permission
from diamant.broker.security.identity.principal import USER, Principal

MAX_DECISIONS = 100_000
"""The maximum number of cached decisions, for all clients together: about 20 MB if names have 100 characters."""

Client: TypeAlias = tuple[Principal, str]
"""A client's principal and its address without the port."""

ANY_USER = f"{USER}:{WILDCARD}"
Known: TypeAlias = "dict[str | None, bool]"
"""Cached decisions by resource name. Under None: whether the permission is granted for at least one name."""


class Authorizer:
    """Makes and caches decisions. Belongs to the loop thread.

    `generation` grows whenever the cache is cleared, which makes everything derived from older decisions stale.
    """

    def __init__(self, super_users: Iterable[str], *, allows_by_default: bool, acls: Iterable[Acl] = ()) -> None:
        """`super_users`: principals such as `User:alice`. `allows_by_default`: `allow.everyone.if.no.acl.found`."""
        self.super_users = frozenset(super_users)
        self.allows_by_default = allows_by_default
        self.index = AclIndex(acls)
        self.generation = 0
        self.on_denial: Callable[[Client, Permission, str], object] | None = None
        """Called for every denied request of a client, even if the decision was cached."""
        self._decisions: dict[Client, dict[Permission, Known]] = {}
        self._count = 0

    # -- changes -------------------------------------------------------------------------------------------------

    def add(self, acls: Iterable[Acl]) -> None:
        """Add ACLs."""
        for acl in acls:
            self.index.add(acl)
        self._forget()

    def remove(self, acls: Iterable[Acl]) -> None:
        """Remove ACLs."""
        for acl in acls:
            self.index.remove(acl)
        self._forget()

    # -- questions -----------------------------------------------------------------------------------------------

    def allows(self, client: Client, permission: Permission, name: str = CLUSTER_NAME) -> bool:
        """True if the client has the permission; reports a denial to `on_denial`."""
        is_allowed = self.would_allow(client, permission, name)
        if not is_allowed:
            self.denied(client, permission, name)
        return is_allowed

    def would_allow(self, client: Client, permission: Permission, name: str = CLUSTER_NAME) -> bool:
        """Like `allows`, but do not report a denial; for callers that do not fail the request because of it."""
        known = self.decisions(client, permission)
        is_allowed = known.get(name)
        return self.decide(client, permission, name, known) if is_allowed is None else is_allowed

    def operations(self, client: Client, resource: ResourceType, name: str) -> int:
        """Return the client's operations on a resource, bit n for operation n (KIP-430)."""
        return sum(
            1 << operation
            for operation in SUPPORTED_OPERATIONS[resource]
            if self._is_allowed(client, operation, resource, name)
        )

    # -- for `ClientAccess` --------------------------------------------------------------------------------------

    def decisions(self, client: Client, permission: Permission) -> Known:
        """Return the dict in which the decisions about a client's permission are cached."""
        by_permission = self._decisions.get(client)
        if by_permission is None:
            by_permission = self._decisions[client] = {}
            self._count += 1
        known = by_permission.get(permission)
        if known is None:
            known = by_permission[permission] = {}
            self._count += 1
        return known

    def decide(self, client: Client, permission: Permission, name: str, known: Known) -> bool:
        """Decide, and cache the decision in `known`, which is a result of `decisions`."""
        is_allowed = self._is_allowed(client, permission.operation, permission.resource, name)
        self._remember(known, name, is_allowed)
        return is_allowed

    def decide_any(self, client: Client, permission: Permission, known: Known) -> bool:
        """Return whether the client has the permission for at least one resource name, and cache the decision in `known`."""
        is_allowed = known.get(None)
        if is_allowed is None:
            # Like Kafka, authorize a name that no topic has; this applies super users and allow.everyone.if.no.acl.found.
            is_allowed = self._is_allowed(
                client, permission.operation, permission.resource, "hardcode"
            ) or self.index.allows_any(_principals(client), _hosts(client), permission.operation, permission.resource)
            self._remember(known, None, is_allowed)
        return is_allowed

    def denied(self, client: Client, permission: Permission, name: str) -> None:
        """Report a denial to `on_denial`."""
        if self.on_denial is not None:
            self.on_denial(client, permission, name)

    def _is_allowed(self, client: Client, operation: Operation, resource: ResourceType, name: str) -> bool:
        if str(client[0]) in self.super_users:
            return True
        decision = self.index.decision(_principals(client), _hosts(client), operation, resource, name)
        return self.allows_by_default if decision is None else decision

    def _remember(self, known: Known, name: str | None, is_allowed: bool) -> None:
        if self._count >= MAX_DECISIONS:
            self._forget()
        self._count += 1
        known[name] = is_allowed

    def _forget(self) -> None:
        self._decisions.clear()
        self._count = 0
        self.generation += 1


def _principals(client: Client) -> tuple[str, str]:
    return str(client[0]), ANY_USER


def _hosts(client: Client) -> tuple[str, ...]:
    """Return the ACL hosts that match an address: the address (for IPv6 also as Java writes it, with all 8 groups) and `*`."""
    host = client[1]
    if ":" not in host:
        return host, WILDCARD
    from ipaddress import IPv6Address

    try:
        address = IPv6Address(host)
    except ValueError:
        return host, WILDCARD
    groups = ":".join(f"{int(group, 16):x}" for group in address.exploded.partition("%")[0].split(":"))
    return host, groups, WILDCARD
