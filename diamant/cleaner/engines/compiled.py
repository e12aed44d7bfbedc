"""The compiled engine of the cleaner: the rounds of `plain_round`, byte for byte, many times as quick.

Importing this loads no compiler. The engine needs some ten seconds to be compiled on a machine for the first time, so a
caller asks `is_warm()` first, and lets the plain engine do the round while `warm_up()` runs elsewhere.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from diamant.cleaner.kernels import cache
from diamant.cleaner.rules.result import CheckDone, CleanResult, OnOutput, Throttle, never_done, no_output, no_throttle

if TYPE_CHECKING:
    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.storage.env.env import Env

_warming = threading.Lock()
_is_warm_here = False


def clean(
    env: Env,
    plan: CleanPlan,
    *,
    on_output: OnOutput = no_output,
    check_done: CheckDone = never_done,
    throttle: Throttle = no_throttle,
    sync_threads: int = 0,
) -> CleanResult:
    """Carry out `plan` as `plain_round.clean` does; compiles first what is not compiled yet."""
    warm_up()
    from diamant.cleaner.engines.compiled_round import run

    return run(env, plan, on_output=on_output, check_done=check_done, throttle=throttle, sync_threads=sync_threads)


def is_warm() -> bool:
    """Tell whether `clean` can start within a second: everything is compiled, in this process or in the cache."""
    return _is_warm_here or cache.is_cached()


def warm_up() -> None:
    """Compile everything, or load it from the cache. May be called from any thread, more than once."""
    global _is_warm_here
    with _warming:
        if _is_warm_here:
            return
        from diamant.cleaner.engines.compiled_round import call_every_kernel

        call_every_kernel()
        if not cache.is_cached():
            # The certifying scan's too, so that the first one finds it there; rounds do not need it.
            from diamant.cleaner.kernels.search import warm_up as warm_up_search

            warm_up_search()
            cache.note_cached()
        _is_warm_here = True
