"""The best engine: the compiled one, or the plain one if the kernels are not built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.kernels import ARE_COMPILED

if TYPE_CHECKING:
    from diamant.cleaner.engines.round import Engine


def best_engine() -> Engine:
    """Import and return the engine for plans of any size. `parallel_engine.processes_for` decides how many processes it uses."""
    if ARE_COMPILED:
        from diamant.cleaner.parallel import parallel_engine

        return parallel_engine.clean
    from diamant.cleaner.engines import plain_round

    return plain_round.clean
