"""The operations on faults. In Python, any thread can call those of `broker.faults`; its `add` returns a handle to the fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.faults.fault import Fault
from diamant.broker.faults.fault_requests import FaultIdRequest, FaultRequest, GetFaultRequest
from diamant.broker.faults.installed_faults import MAX_FAULTS, Faults
from diamant.broker.faults.spec import FaultSpec
from diamant.broker.node.lazy import Lazy
from diamant.broker.operation_errors import NotFound, TimedOut
from diamant.broker.operations.broker_state.running_requests import NoArguments
from diamant.progress import Progress


async def add(faults: Lazy[Faults], request: FaultRequest, _: Progress) -> Mapping[str, Any]:
    """Install a fault, and return it with its id. Raises FaultError."""
    return faults().add_spec(FaultSpec.of(request)).as_json()


async def list_faults(faults: Lazy[Faults], _request: NoArguments, _: Progress) -> Mapping[str, Any]:
    """Return all faults with their counts, and the maximum number of faults."""
    found = [fault.as_json() for fault in faults.made.list()] if faults.made is not None else []
    return {"faults": found, "max_faults": MAX_FAULTS}


async def clear(faults: Lazy[Faults], _request: NoArguments, _: Progress) -> Mapping[str, Any]:
    """Remove all faults; return how many there were."""
    return {"removed": faults.made.clear() if faults.made is not None else 0}


async def get(faults: Lazy[Faults], request: GetFaultRequest, _: Progress) -> Mapping[str, Any]:
    """Return one fault; with `wait_fired`, wait until it has fired. Raises NotFound, TimedOut."""
    fault = _fault(faults, request.id)
    try:
        await fault.until_fired(request.wait_fired, timeout=request.timeout)
    except TimeoutError as error:
        raise TimedOut(str(error)) from None
    return fault.as_json()


async def remove(faults: Lazy[Faults], request: FaultIdRequest, _: Progress) -> Mapping[str, Any]:
    """Remove a fault and return its final counts. Raises NotFound."""
    fault = _fault(faults, request.id)
    shown = fault.as_json()
    fault.remove()
    return shown


async def release(faults: Lazy[Faults], request: FaultIdRequest, _: Progress) -> Mapping[str, Any]:
    """Release the requests held by a fault; return how many there were. Raises NotFound."""
    return {"released": _fault(faults, request.id).release()}


def _fault(faults: Lazy[Faults], text: str) -> Fault:
    is_number = text.isascii() and text.isdigit() and len(text) < 20
    fault = faults.made.get(int(text)) if is_number and faults.made is not None else None
    if fault is None:
        raise NotFound(f"there is no fault {text[:40]!r}")
    return fault
