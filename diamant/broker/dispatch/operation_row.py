"""The row of one operation in `operation_table.py`: everything that is declared of it besides its request and its function."""

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
"""The largest body of a request, unless its row says otherwise."""

MAX_KEYED_BODY_BYTES = 8 * 1024 * 1024
"""The same with a key or a certificate: a key of 6 MiB in base64. A certificate of 1,000 partitions has about 2 MB.
Parsing this much blocks the loop for less than 0.1 s.
"""

Work: TypeAlias = "Callable[[Any, Progress], Awaitable[Any]]"
"""Takes the request and the progress of the call. Its result is a mapping, or has `to_fields`, for JSON. Raises OperationError.
With `is_stream` it returns an async generator.
"""


class OperationRow(NamedTuple):
    """One operation: a method of `Broker`, `BlockingBroker` and `Admin`, an HTTP route, and mostly a command."""

    name: str
    """The name of the methods. Commands have hyphens in place of underscores."""
    route: str
    """Method and path. `{name}` is an argument in the path; the others are in the body of a POST, else in the query."""
    request: str
    """The class of its request, as `module:Class` below `diamant`."""
    function: str
    """The function that does the work, as `module:function` or `module:Class.method` below `diamant`."""
    dependencies: Callable[[Services], tuple[Any, ...]]
    """The first arguments of the function: for a method, its object."""
    summary: str
    """One sentence, in the help of commands, too."""
    permissions: tuple[Permission, ...]
    """All are required; those on topics are checked for each topic of the request."""
    permissions_with: Mapping[str, Permission] = {}
    """Further permissions, by the argument that causes them."""
    changes_data: bool = False
    """True if it changes data or the broker's behaviour: it requires the token, on a broker with one, and is audited."""
    reads_records: bool = False
    """True if it returns keys or records: it requires the token, and is audited as reading."""
    reads_with: tuple[str, ...] = ()
    """Arguments with which it is audited as reading, since it reveals records."""
    is_stream: bool = False
    """True for a function that yields its result in parts, lists of JSON objects: the lines of the response."""
    is_job: bool = False
    can_be_ended: bool = False
    """True for a job that can be cancelled without leaving anything half done."""
    not_kept: tuple[str, ...] = ()
    """Fields of a job's result with a key. Only the POST itself returns them; in the job they are null."""
    max_body_bytes: int = MAX_BODY_BYTES
    created: str = ""
    """For an operation that creates something: its path, with fields of the answer. The response is then 201."""
    methods: tuple[str, ...] = ("Broker", "Admin")
    """The classes that get a method from this row. `Broker` stands for `BlockingBroker`, too. A row without one says why."""
    section: str = ""
    """The heading in `diamant --help`; "" if there is no command."""
    command: str = ""
    """The command, as `module:function` below `diamant.broker.commands`; "" for one that prints the answer as JSON."""
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
        """Import the class of its request."""
        found: type[Any] = imported(self.request)
        return found

    async def work(self, services: Services) -> Work:
        """Return the function with its dependencies. A thread creates them: imports would block the loop for 0.1 s."""
        if self.name not in services.performed:
            import asyncio  # the help of commands needs the rows, but no event loop

            await asyncio.to_thread(self._work, services)
            services.performed.add(self.name)
        return self._work(services)

    def _work(self, services: Services) -> Work:
        return partial(imported(self.function), *self.dependencies(services))


def imported(name: str) -> Any:
    """Import `module:Class` or `module:Class.method` below `diamant`."""
    module, _, path = name.partition(":")
    return reduce(getattr, path.split("."), import_module(f"diamant.{module}"))
