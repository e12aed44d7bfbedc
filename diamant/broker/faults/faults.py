"""The list of installed faults, for any thread.

    fault = broker.faults.add(api="Produce", topic="orders", error="NOT_LEADER_OR_FOLLOWER", times=2)
    ...                                  # the producer sends, is refused twice and tries again
    fault.wait_fired(2)
    fault.remove()

While the list is empty requests go past all of this: the server's dispatch function is replaced with the first fault and put
back with the last. The loop thread owns the list; calls from other threads are handed over to it and waited for.

Bounds: `MAX_FAULTS`; each remembers `fault.MAX_FIRINGS` requests. A request that a fault holds keeps its connection, so
there is at most one for each connection.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from diamant.broker.faults.certificate_faults import CertificateFaults
from diamant.broker.faults.dispatch import FaultDispatch
from diamant.broker.faults.fault import Fault
from diamant.broker.faults.spec import FaultError, FaultSpec

if TYPE_CHECKING:
    from diamant.broker.network.server import Server
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

MAX_FAULTS = 1000
CALL_TIMEOUT_S = 10.0
"""The time that another thread waits for the loop to take its call."""

_Result = TypeVar("_Result")


class TooManyFaults(FaultError):
    """`MAX_FAULTS` are installed."""


class Faults:
    """A broker's faults; made with the first use of `Broker.faults`."""

    def __init__(self, node: Node, server: Server, served_keys: Collection[int]) -> None:
        self._loop = node.loop
        self._installed: dict[int, Fault] = {}
        self._last_id = 0
        self._dispatch = FaultDispatch(node, server, served_keys, self._installed, self._count)
        self._certificates = CertificateFaults(node, self._installed)
        self.fired: Counter[tuple[str, int]] = Counter()
        """Counts of fired faults, by (effect, API key), removed ones included. Belongs to the loop thread."""

    def __len__(self) -> int:
        return len(self._installed)

    # -- any thread ----------------------------------------------------------------------------------------------------

    def add(
        self,
        api: str | int | list[str | int] | None = None,
        *,
        client_id: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        after: int = 0,
        times: int | None = None,
        probability: float = 1.0,
        seed: int | None = None,
        error: str | int | None = None,
        after_applying: bool = False,
        delay_ms: int = 0,
        hold: bool = False,
        drop: bool = False,
        cut: bool | int = False,
        throttle_time_ms: int = 0,
        stale: Mapping[str, Any] | None = None,
        coordinator_loading: bool = False,
        certificate: str | None = None,
    ) -> Fault:
        """Install a fault; it is in effect when this returns. Raises FaultError for what cannot be.

        Which requests: of an `api` (name or key, or a list; None: any), of a client (`client_id`: the id or a pattern as
        `app-*`), about a `topic` and `partition`; not the first `after` of them, then `times` of them (None: all), each
        with `probability` (repeatable with `seed`). The first fault, in the order of their adding, that wants a
        request has it; others neither see nor count it.

        What happens: the request is answered by `error` (name or number) in place of being carried out. With `topic`
        only the parts about it are refused, the others are carried out. `delay_ms`: it waits. `hold`: it waits until
        `release` or `remove`, `spec.MAX_DELAY_MS` at the longest. `drop`: its connection is closed. With
        `after_applying` all this comes after it was carried out. `cut`: it is carried out and of the answer's frame only
        half is sent (a number: so many bytes), then the connection is closed. `throttle_time_ms`: the answer says so.
        `stale`: Metadata tells of `missing` topics, another `leader_id`, `leader_epoch`, `host`, `port` or an earlier
        `partition_count`. `coordinator_loading`: the error COORDINATOR_LOAD_IN_PROGRESS in all APIs of coordinators.
        Waiting, throttling and one of the others may be combined.

        `certificate` is about connections, not requests: with `BrokerConfig(tls=True)` they are shown one that is `expired`, or
        that of another host (`wrong-host`). `after`, `times`, `probability` and `seed` count connections then.
        """
        values = locals()
        del values["self"]
        return self.add_spec(FaultSpec.make(**values))

    def add_spec(self, spec: FaultSpec) -> Fault:
        """Install what `FaultSpec.make` has checked. Raises TooManyFaults."""
        return self.call(lambda: self._add(spec))

    def list(self) -> list[Fault]:
        """The installed faults, in the order of their adding."""
        return self.call(lambda: [*self._installed.values()])

    def get(self, fault_id: int) -> Fault | None:
        """An installed fault."""
        return self.call(lambda: self._installed.get(fault_id))

    def remove(self, fault_id: int) -> bool:
        """Remove a fault and release the requests that it holds; False if it is not there."""
        return self.call(lambda: self._remove(fault_id))

    def clear(self) -> int:
        """Remove all faults and release the requests that they hold; return how many there were."""
        return self.call(self._clear)

    @property
    def is_on_loop(self) -> bool:
        """True on the thread of the broker's event loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Run a function on the loop thread, now if this is it. RuntimeError if the loop has ended or does not turn."""
        if self.is_on_loop or self._loop.is_closed():
            return function()
        future: concurrent.futures.Future[_Result] = concurrent.futures.Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        try:
            return future.result(CALL_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise RuntimeError(f"the broker's event loop has not answered for {CALL_TIMEOUT_S:g} s") from None

    # -- the loop thread -----------------------------------------------------------------------------------------------

    def _add(self, spec: FaultSpec) -> Fault:
        if len(self._installed) >= MAX_FAULTS:
            raise TooManyFaults(f"{MAX_FAULTS} faults are installed, remove some first")
        if spec.certificate is not None:
            self._certificates.install()
        self._last_id += 1
        fault = self._installed[self._last_id] = Fault(self, self._last_id, spec)
        self._dispatch.install()
        told = ", ".join(f"{name}={value}" for name, value in spec.as_json().items())
        logger.info("fault %d added: %s", self._last_id, told)
        return fault

    def _remove(self, fault_id: int) -> bool:
        fault = self._installed.pop(fault_id, None)
        if fault is not None:
            fault.removed()
        if not self._installed:
            self._dispatch.uninstall()
            self._certificates.uninstall()
        return fault is not None

    def _clear(self) -> int:
        count = len(self._installed)
        for fault_id in [*self._installed]:
            self._remove(fault_id)
        return count

    def _count(self, fault: Fault, api_key: int) -> None:
        self.fired[fault.spec.effect, api_key] += 1
