"""The second pass of a round by several processes, a group of segments each at a time: the outputs come in their order.

A marker, or a batch of a transaction, means something only to who has read all before it: from the first group on that has one,
and from one that a process could not rewrite, this process rewrites the rest by itself, and its errors are those of the round.

Groups of which more stays take longer, mostly the last ones: each window of groups begins with those, so that at the end no
process is left alone with a large one. As many outputs may be complete before the first of them is handed over.

Memory: children share the map with this process as long as they only look keys up in it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from diamant.cleaner.engines.group_rewrite import rewrite_group
from diamant.cleaner.parallel.fork import Fork, ForkFailed
from diamant.cleaner.rules.result import CleaningAborted, CleanStats, OutputSegment, never_done, no_throttle
from diamant.storage import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from diamant.cleaner.engines.compiled_rewriter import CompiledRewriter
    from diamant.cleaner.engines.survivors import MapSurvivors
    from diamant.cleaner.engines.work import RoundWork
    from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan

_INDEX = Struct("=H")
MAX_GROUPS = 16 * 1024
"""As many indexes fit a pipe."""
WINDOW = 4
"""Groups of a window for each process."""


class Rewritten(NamedTuple):
    """What comes of a group."""

    group: int
    outputs: tuple[OutputSegment, ...]
    stats: CleanStats


class GroupRewriters:
    """Rewrites groups by `processes`, this one among them; that which wrote an output calls `on_written` for it."""

    def __init__(
        self,
        work: RoundWork,
        survivors: MapSurvivors,
        new_rewriter: Callable[[RoundWork], CompiledRewriter],
        on_written: Callable[[OutputSegment], None],
        processes: int,
    ) -> None:
        self._work = work
        self._survivors = survivors
        self._new_rewriter = new_rewriter
        self._on_written = on_written
        self._processes = processes

    def outputs(self, groups: Sequence[Sequence[SegmentPlan]]) -> Iterator[OutputSegment]:
        """Yield the outputs of the groups. Errors as `rewrite_group`."""
        rewriter, needs_order = self._new_rewriter(self._work), False
        for groups_of_stage in _stages(self._work.plan, groups):
            done = 0
            if len(groups_of_stage) > 1 and not needs_order:
                try:
                    for outputs in self._stage(groups_of_stage):
                        yield from outputs
                        done += 1
                except _InOrder:
                    needs_order = True
            for group in groups_of_stage[done:]:
                self._survivors.go_to(group[0])
                for output in rewrite_group(self._work, rewriter, group):
                    self._on_written(output)
                    yield output
            needs_order |= rewriter.tracker.has_met_any

    def _stage(self, groups: Sequence[Sequence[SegmentPlan]]) -> Iterator[tuple[OutputSegment, ...]]:
        """Yield the outputs of each group; _InOrder at the first that needs those before it, or fails."""
        if not self._survivors.is_steady(groups[0][0], groups[-1][-1]):
            raise _InOrder
        self._survivors.go_to(groups[0][0])
        costs = [self._survivors.staying_in(group[0], group[-1]) for group in groups]
        order = costliest_first(costs, WINDOW * self._processes)
        stage = _Stage(self._work, self._survivors, self._new_rewriter, self._on_written, groups, order)
        try:
            stage.begin(min(self._processes, len(groups)) - 1)
            yield from stage.results()
        finally:
            stage.end()


class _InOrder(Exception):
    """The rest is for one process."""


class _Stage:
    """Groups that all can be rewritten at the same time."""

    def __init__(
        self,
        work: RoundWork,
        survivors: MapSurvivors,
        new_rewriter: Callable[[RoundWork], CompiledRewriter],
        on_written: Callable[[OutputSegment], None],
        groups: Sequence[Sequence[SegmentPlan]],
        order: Sequence[int],
    ) -> None:
        self._work = work
        self._survivors = survivors
        self._new_rewriter = new_rewriter
        self._on_written = on_written
        self._groups = groups
        self._forks: list[Fork] = []
        self._found: dict[int, Rewritten] = {}
        self._next = 0
        """Index of the next group whose outputs are to be handed over."""
        self._claims, claiming = os.pipe()
        # The process that reads the index of a group rewrites it.
        os.write(claiming, b"".join(map(_INDEX.pack, order)))
        os.close(claiming)

    def begin(self, children: int) -> None:
        """Start the children."""
        with suppress(OSError):  # no more processes: then with fewer
            for _ in range(children):
                self._forks.append(Fork(self._run_child))

    def results(self) -> Iterator[tuple[OutputSegment, ...]]:
        """Rewrite groups, and yield the outputs of all."""
        check_done = self._work.check_done
        rewritten = self._rewritten(replace(self._work, throttle=no_throttle))
        with suppress(_InOrder):
            for one in rewritten:
                self._found[one.group] = one
                for fork in self._forks:
                    while fork.has_answer() and self._take(fork, check_done):
                        pass
                yield from self._ready()
        for fork in self._forks:
            while self._take(fork, check_done):
                yield from self._ready()
        yield from self._ready()
        if self._next < len(self._groups):
            raise _InOrder

    def end(self) -> None:
        """End the children, and remove what was not handed over."""
        for fork in self._forks:
            fork.close()
        os.close(self._claims)
        for group in self._groups[self._next :]:
            for segment in group:
                _remove_cleaned(self._work, segment.base_offset)

    def _run_child(self, answering: Connection) -> None:
        alone = replace(self._work, check_done=never_done, throttle=no_throttle)
        with suppress(_InOrder):
            for one in self._rewritten(alone):
                answering.send(one)

    def _rewritten(self, work: RoundWork) -> Iterator[Rewritten]:
        """Rewrite groups as long as there are any; _InOrder at one that is not for this."""
        while index := os.read(self._claims, _INDEX.size):
            (at,) = _INDEX.unpack(index)
            group = self._groups[at]
            self._survivors.go_to(group[0])
            work = replace(work, stats=CleanStats())
            rewriter = self._new_rewriter(work)
            try:
                outputs = tuple(rewrite_group(work, rewriter, group))
                if rewriter.tracker.has_met_any:
                    raise _InOrder
                for output in outputs:
                    self._on_written(output)
            except CleaningAborted:
                raise
            except Exception as error:
                raise _InOrder from error
            yield Rewritten(at, outputs, work.stats)

    def _take(self, fork: Fork, check_done: Callable[[], None]) -> bool:
        """Take an answer; return False if there is no other."""
        try:
            one: Rewritten = fork.answer(check_done)
        except ForkFailed:
            return False
        self._found[one.group] = one
        return True

    def _ready(self) -> Iterator[tuple[OutputSegment, ...]]:
        while self._next in self._found:
            self._work.check_done()
            one = self._found.pop(self._next)
            self._next += 1
            self._work.stats.add(one.stats)
            self._work.throttle(one.stats.bytes_read + one.stats.bytes_written)
            yield one.outputs


def costliest_first(costs: Sequence[int], window: int) -> list[int]:
    """Return the indexes of groups, the costliest first in each window of so many; the first window may have less."""
    order: list[int] = []
    for end in range(len(costs), 0, -window):
        order[:0] = sorted(range(max(0, end - window), end), key=lambda index: -costs[index])
    return order


def _stages(plan: CleanPlan, groups: Sequence[Sequence[SegmentPlan]]) -> list[Sequence[Sequence[SegmentPlan]]]:
    """Return the groups of the clean section, the one that reaches into the dirty range, and those in it."""
    first_dirty = plan.first_dirty_offset
    clean = sum(group[-1].next_base_offset <= first_dirty for group in groups)
    whole = sum(group[0].base_offset < first_dirty for group in groups)
    stages = (groups[:clean], groups[clean:whole], groups[whole:])
    return [stage[at : at + MAX_GROUPS] for stage in stages for at in range(0, len(stage), MAX_GROUPS)]


def _remove_cleaned(work: RoundWork, base_offset: int) -> None:
    files = (names.log_file, names.index_file, names.time_index_file, names.txn_index_file)
    for file in files:
        with suppress(OSError):
            work.env.remove(file(work.plan.directory, base_offset) + names.CLEANED_SUFFIX, missing_ok=True)
