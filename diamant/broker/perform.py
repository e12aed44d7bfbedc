"""Performs operations for Python methods: checks the arguments, then runs the operation's function on the broker's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from diamant.broker.dispatch.services import Services
from diamant.broker.node.node import Node
from diamant.broker.operation_errors import as_operation_error
from diamant.broker.operations.calls.cross_loop import on_loop
from diamant.broker.running import RunningBroker

T = TypeVar("T")


class AnyBroker(Protocol):
    """The attributes of a broker that operations need. Reading them raises RuntimeError if the broker has not started."""

    @property
    def running(self) -> RunningBroker: ...

    @property
    def services(self) -> Services: ...

    @property
    def node(self) -> Node: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...


async def perform(broker: AnyBroker, name: str, given: Mapping[str, Any]) -> T:
    """Run the operation `name` with the arguments given to its method; return the method's result. Raises OperationError."""
    services = broker.services
    if asyncio.get_running_loop() is not broker.loop:
        return await on_loop(broker.loop, perform(broker, name, given))
    with as_operation_error():
        from diamant.broker.dispatch.operation_table import OPERATIONS
        from diamant.broker.operations.calls.parameters import request_of
        from diamant.progress import Progress

        operation = OPERATIONS[name]
        request = request_of(operation.request_class(), given)
        found: T = await (await operation.work(services))(request, given.get("progress") or Progress())
        return found
