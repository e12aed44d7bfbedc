"""The row of one operation in `operation_table.py`: all of its declaration except its request and its function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial, reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from diamant.broker.security.authorization.permissions import Permission

if TYPE_CHECKING:
    from diamant.broker.dispatch.services import Services
    from diamant.progress import Progress

MAX_BODY_BYTES = 64 * 1024
"""The default maximum size of a request's body."""

MAX_KEYED_BODY_BYTES = 8 * 1024 * 1024
"""The maximum size of a body that contains a key or a certificate. A key of 6 MiB in base64 fits; a certificate of 1,000
partitions has about 2 MB. Parsing such a body blocks the loop for less than 0.1 s.
"""

Work: TypeAlias = "Callable[[Any, Progress], Awaitable[Any]]"
"""A function of the request and the call's progress. It returns a mapping or an object with `to_fields`, or, with `is_stream`, an
async generator. Raises OperationError.
"""


class OperationRow(NamedTuple):
    """One operation: a method of `Broker`, `BlockingBroker` and `Admin`, an HTTP route, and usually a command."""

    name: str
    """The name of the methods. Commands have hyphens in place of underscores."""
    route: str
    """Method and path. `{name}` is an argument in the path. Other arguments are in the body of a POST, otherwise in the query."""
    request: str
    """The class of the request, as `module:Class` below `diamant`."""
    function: str
    """The function that does the work, as `module:function` or `module:Class.method` below `diamant`."""
    dependencies: Callable[[Services], tuple[Any, ...]]
    """Returns the first arguments of the function or, for a method, its object."""
    summary: str
    """A summary in one sentence, also shown in the help of commands."""
    permissions: tuple[Permission, ...]
    """The required permissions. Permissions on topics are checked for each topic of the request."""
    permissions_with: Mapping[str, Permission] = {}
    """Further permissions, by the argument that requires them."""
    changes_data: bool = False
    """True if the operation changes data or the broker's behaviour. It requires the broker's token, if any, and is audited."""
    reads_records: bool = False
    """True if the operation returns keys or records. It requires the broker's token, if any, and is audited as reading."""
    reads_with: tuple[str, ...] = ()
    """The arguments with which the operation reveals records and is therefore audited as reading."""
    is_stream: bool = False
    """True if the function yields its result in parts, as lists of JSON objects, which are the lines of the response."""
    is_job: bool = False
    can_be_ended: bool = False
    """True for a job that can be cancelled without leaving anything half done."""
    not_kept: tuple[str, ...] = ()
    """The fields of a job's result that contain keys. Only the response to the POST has them; in the job, they are null."""
    max_body_bytes: int = MAX_BODY_BYTES
    created: str = ""
    """The path of the resource that the operation creates, with fields of the answer in braces; the status is then 201."""
    methods: tuple[str, ...] = ("Broker", "Admin")
    """The classes that get a method from this row. `Broker` includes `BlockingBroker`. A comment says why a class gets none."""
    section: str = ""
    """The heading in `diamant --help`; "" if there is no command."""
    command: str = ""
    """The command, as `module:function` below `diamant.broker.commands`; "" for a command that prints the answer as JSON."""
    answer: str = "A JSON object, as the summary says."

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        """The HTTP path."""
        return self.route.partition(" ")[2]

    def request_class(self) -> type[Any]:
        """Import and return the class of the request."""
        found: type[Any] = imported(self.request)
        return found

    async def work(self, services: Services) -> Work:
        """Return the function with its dependencies. A thread creates them, since imports would block the loop for 0.1 s."""
        if self.name not in services.performed:
            import asyncio  # the help of commands needs the rows, but no event loop

            await asyncio.to_thread(self._work, services)
            services.performed.add(self.name)
        return self._work(services)

    def _work(self, services: Services) -> Work:
        return partial(imported(self.function), *self.dependencies(services))


def imported(name: str) -> Any:
    """Import and return `module:Class` or `module:Class.method` below `diamant`."""
    module, _, path = name.partition(":")
    return reduce(getattr, path.split("."), import_module(f"diamant.{module}"))
