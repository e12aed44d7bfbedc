"""The list of installed faults, which any thread can use.

    fault = broker.faults.add(api="Produce", topic="orders", error="NOT_LEADER_OR_FOLLOWER", times=2)
    ...                                  # the producer sends, is refused twice, and retries
    fault.wait_fired(2)
    fault.remove()

Without faults, requests bypass this module: the first fault replaces the server's dispatch function, and removing the last fault
restores it. The loop thread owns the list. A call from another thread is run by the loop, and its caller waits for it.

Bounds: at most `MAX_FAULTS` faults, each with its last `fault.MAX_FIRINGS` firings. A held request blocks its connection, so
there is at most one per connection.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from diamant.broker.faults.dispatch import FaultDispatch
from diamant.broker.faults.fault import Fault, Firing
from diamant.broker.faults.spec import FaultError, FaultSpec
from diamant.broker.operation_errors import NotPossible

if TYPE_CHECKING:
    import ssl

    from diamant.broker.network.server import Server
    from diamant.broker.node.node import Node
    from diamant.broker.security.tls.listener_tls import ListenerTls
    from diamant.protocol.wire.error_shape import ErrorShape

logger = logging.getLogger(__name__)

MAX_FAULTS = 1000
CALL_TIMEOUT_S = 10.0
"""How long a caller in another thread waits for the loop to run its call."""

_Result = TypeVar("_Result")


HANDSHAKE = "TLS handshake"
"""The name that counts and logs show in place of an API's name."""


class CertificateFaults:
    """Certificate faults: TLS connections get a certificate that has expired or is for another host. Belongs to the loop thread.

    They need a broker with a throw-away CA (`BrokerConfig(tls=True)`): since clients trust this CA, they can reject the
    certificate only for its contents. `installed`: all faults, in matching order. Each context is made once.
    """

    def __init__(self, node: Node, installed: Mapping[int, Fault]) -> None:
        self._node = node
        self._installed = installed
        self._contexts: dict[tuple[str, str], ssl.SSLContext] = {}

    def install(self) -> None:
        """Choose the certificate of each connection from now on. Raises FaultError if there is no throw-away CA."""
        tls = self._node.tls
        if tls is None or tls.authority is None:
            raise FaultError("certificate: needs a broker with its own CA: BrokerConfig(tls=True)")
        for listener in tls.by_name.values():
            listener.choose = self._choose

    def uninstall(self) -> None:
        """Stop choosing certificates. Idempotent."""
        if self._node.tls is not None:
            for listener in self._node.tls.by_name.values():
                listener.choose = None

    def _choose(self, listener: ListenerTls, peer: str) -> ssl.SSLContext | None:
        for fault in self._installed.values():
            kind = fault.spec.certificate
            if kind is not None and fault.draws():
                fault.fire(Firing(self._node.env.clock.now_ms(), HANDSHAKE, 0, None, peer, ()))
                return self._context(listener, kind)
        return None

    def _context(self, listener: ListenerTls, kind: str) -> ssl.SSLContext:
        key = listener.settings.where, kind
        if key not in self._contexts:
            assert self._node.tls is not None
            self._contexts[key] = self._node.tls.faulty_context(
                listener, self._node.config, is_expired=kind == "expired"
            )
        return self._contexts[key]


class TooManyFaults(FaultError):
    """Raised if `MAX_FAULTS` faults are already installed."""

    code = NotPossible.code


class Faults:
    """The faults of a broker. Created on the first use of `Broker.faults`."""

    def __init__(self, node: Node, server: Server, shapes: Mapping[int, ErrorShape]) -> None:
        """`shapes`: the shape of each served API's errors, by key."""
        self._loop = node.loop
        self._broker_ids = node.config.broker_ids
        self._installed: dict[int, Fault] = {}
        self._last_id = 0
        self._is_closed = False
        self._coordinator_apis = frozenset(key for key, shape in shapes.items() if shape.is_of_coordinator)
        self._dispatch = FaultDispatch(node, server, shapes, self._installed, self._count)
        self._certificates = CertificateFaults(node, self._installed)
        self.fired: Counter[tuple[str, int]] = Counter()
        """The number of firings by effect and API key, including removed faults. Belongs to the loop thread."""

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
        broker: int | None = None,
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
        """Install a fault; it is in effect when this returns. `FaultRequest` explains the arguments. Raises FaultError.

        Faults are tried in the order in which they were added. The first one that fires takes the request; later ones neither
        see nor count it. Waiting, throttling and one other effect may be combined, and `cut` with an error or `stale`. With a
        `topic`, an `error` refuses only that topic's parts of a request, and the rest is handled. With `coordinator_loading` and
        no `api`, the fault matches all APIs of coordinators. With `certificate`, it matches new connections, not requests, and
        needs `BrokerConfig(tls=True)`.
        """
        values = locals()
        del values["self"]
        return self.add_spec(FaultSpec.make(**values))

    def add_spec(self, spec: FaultSpec) -> Fault:
        """Install a validated specification. Raises TooManyFaults."""
        if spec.coordinator_loading and spec.api_keys is None:
            spec = replace(spec, api_keys=self._coordinator_apis)
        return self.call(lambda: self._add(spec))

    def list(self) -> list[Fault]:
        """Return the installed faults, oldest first."""
        return self.call(lambda: [*self._installed.values()])

    def get(self, id: int) -> Fault | None:
        """Return an installed fault, or None."""
        return self.call(lambda: self._installed.get(id))

    def remove(self, id: int) -> bool:
        """Remove a fault and release its held requests. Return False if there is no such fault."""
        return self.call(lambda: self._remove(id))

    def clear(self) -> int:
        """Remove all faults and release their held requests; return the number of faults."""
        return self.call(self._clear)

    @property
    def is_on_loop(self) -> bool:
        """True on the thread of the broker's event loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Run a function on the loop thread, or here if the loop is closed. Raises RuntimeError if the loop is blocked."""
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

    def close(self) -> None:
        """Remove all faults. After this, none can be added."""
        self._clear()
        self._is_closed = True

    def _add(self, spec: FaultSpec) -> Fault:
        if self._is_closed:
            raise RuntimeError("the broker was stopped or reset: use the `faults` of the broker as it runs now")
        if len(self._installed) >= MAX_FAULTS:
            raise TooManyFaults(f"{MAX_FAULTS} faults are installed, remove some first")
        if spec.broker is not None and spec.broker not in self._broker_ids:
            known = ", ".join(map(str, self._broker_ids))
            raise FaultError(f"broker: there is no broker {spec.broker}: expected one of {known}")
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
