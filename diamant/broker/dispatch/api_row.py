"""The row of one API in `api_table.py`: everything that the broker declares about the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from diamant.broker.dispatch.audit_subjects import Subjects
from diamant.broker.security.authorization.permissions import Permission
from diamant.protocol.wire.error_shape import ErrorShape

if TYPE_CHECKING:
    from diamant.broker.dispatch.services import Services


class Whole(NamedTuple):
    """A permission that the request as a whole requires."""

    permission: Permission
    field: str = ""
    """The request field that names the resource; "" for the cluster. If the field is null, no permission is required."""
    or_permission: Permission | None = None
    """An alternative permission on the same resource."""
    first_version: int = 0
    last_version: int = 1000
    """The range of versions that require the permission."""


class Audit(NamedTuple):
    """How an API is audited."""

    describe: Callable[[Any], Subjects]
    """Returns the resources that an element of the request or the response names."""
    is_of_request: bool = False
    """True to describe the request's elements: the response's elements, in the same order, lack the fields to describe."""


class Row(NamedTuple):
    """One API. Its versions are Kafka's, from `protocol/wire/apis.py`.

    Source of the permissions: KafkaApis, ControllerApis, AclApis, ConfigHelper of Kafka 4.3.
    """

    module: str
    """The handler's module, below `diamant.broker.handlers`. Its function `answer`, or the function named after a colon, returns
    the response's fields; a function `handle` returns the encoded response instead. Unless the module has a function `decode`,
    requests are decoded by schema.
    """
    dependencies: Callable[[Services], tuple[Any, ...]]
    """Returns the first arguments of the handler's function."""
    whole: tuple[Whole, ...] = ()
    """The permissions that the guard checks before the handler runs. Denials are answered as in Kafka's `getErrorResponse`."""
    items: Mapping[Permission, str] = {}
    """The permissions that the handler checks for single resources, each with a description of the response to a denial."""
    is_open: str = ""
    """Why clients without any permission, or without those in `items`, get a response; "" if they do not."""
    errors: ErrorShape = ErrorShape()
    """Where responses contain error codes; used for denials, audit lines and injected faults."""
    coordinator: str = ""
    """The internal topic whose coordinator handles the request, if the request is for one group or transactional id."""
    audit: Audit | None = None
    """None for an API that changes nothing except records: it requires none of CREATE, DELETE, ALTER and ALTER_CONFIGS."""

    @property
    def permissions(self) -> frozenset[Permission]:
        """All declared permissions."""
        of_whole = {
            permission
            for whole in self.whole
            for permission in (whole.permission, whole.or_permission)
            if permission is not None
        }
        return frozenset(of_whole | self.items.keys())


class WithBody(NamedTuple):
    """A decoded request, and its encoded body, which a guard needs to make a denial. The connection owns the bytes."""

    request: object
    body: memoryview
