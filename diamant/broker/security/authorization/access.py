"""Access: the permission checks that a handler makes for one client, limited to the permissions declared in the API table."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from diamant.broker.acl import CLUSTER_NAME, SUPPORTED_OPERATIONS, ResourceType
from diamant.broker.security.authorization.permissions import Permission
from diamant.broker.security.identity.principal import Principal
from diamant.protocol.errors import KafkaError

if TYPE_CHECKING:
    from diamant.broker.security.authorization.authorizer import Authorizer


class Access(Protocol):
    """The authorization of one client for one API."""

    @property
    def is_open(self) -> bool:
        """True if there is no authorizer, so everything is allowed. Handlers can then skip checking each item."""

    @property
    def key(self) -> tuple[object, ...]:
        """Part of the key of cached responses: two requests with equal keys have the same permissions."""

    def allows(self, permission: Permission, name: str = CLUSTER_NAME, *, is_asked: bool = True) -> bool:
        """True if the client has the permission. With `is_asked=False`, a denial, which fails no request, is not logged."""

    def allows_any(self, permission: Permission) -> bool:
        """True if the client has the permission for at least one resource name (KIP-679)."""

    def operations(self, resource: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the client's operations on a resource, bit n for operation n (KIP-430)."""


_ALL_OPERATIONS = {
    resource: sum(1 << operation for operation in operations) for resource, operations in SUPPORTED_OPERATIONS.items()
}


class OpenAccess:
    """The access that handlers get if there is no authorizer: everything is allowed."""

    is_open = True
    key: tuple[object, ...] = ()

    def allows(self, permission: Permission, name: str = CLUSTER_NAME, *, is_asked: bool = True) -> bool:
        return True

    def allows_any(self, permission: Permission) -> bool:
        return True

    def operations(self, resource: ResourceType, name: str = CLUSTER_NAME) -> int:
        return _ALL_OPERATIONS[resource]


OPEN = OpenAccess()


class UndeclaredPermission(Exception):
    """Raised if a handler checks a permission that the API table does not declare for its API; a bug in Diamant."""


class ClientAccess:
    """The authorizer's decisions for one principal at one host. Valid until the authorizer's `generation` changes."""

    is_open = False

    __slots__ = ("_authorizer", "_client", "_known", "_of_row", "key")

    def __init__(
        self, authorizer: Authorizer, client: tuple[Principal, str], permissions: Collection[Permission], of_row: object
    ) -> None:
        """`of_row`: the name of the API, for the error raised if a handler checks a permission that is not in `permissions`."""
        self._authorizer = authorizer
        self._client = client
        self._of_row = of_row
        self._known = {permission: authorizer.decisions(client, permission) for permission in permissions}
        self.key: tuple[object, ...] = (client, authorizer.generation)

    def allows(self, permission: Permission, name: str = CLUSTER_NAME, *, is_asked: bool = True) -> bool:
        known = self._known.get(permission)
        if known is None:
            raise UndeclaredPermission(f"{permission} is not declared for {self._of_row} in the API table")
        is_allowed = known.get(name)
        if is_allowed is None:
            is_allowed = self._authorizer.decide(self._client, permission, name, known)
        if not is_allowed and is_asked:
            self._authorizer.denied(self._client, permission, name)
        return is_allowed

    def allows_any(self, permission: Permission) -> bool:
        known = self._known.get(permission)
        if known is None:
            raise UndeclaredPermission(f"{permission} is not declared for {self._of_row} in the API table")
        return self._authorizer.decide_any(self._client, permission, known)

    def operations(self, resource: ResourceType, name: str = CLUSTER_NAME) -> int:
        return self._authorizer.operations(self._client, resource, name)


def check(access: Access, permission: Permission, name: str = CLUSTER_NAME, message: str = "") -> None:
    """Raise KafkaError with the permission's error code unless the client has the permission."""
    if not access.allows(permission, name):
        raise KafkaError(permission.denial, message)


def allowed_names(access: Access, permission: Permission, names: Iterable[str], *, is_asked: bool = True) -> set[str]:
    """Return the resources among `names` for which the client has the permission; each name is checked once."""
    unique = set(names)
    return unique if access.is_open else {name for name in unique if access.allows(permission, name, is_asked=is_asked)}
