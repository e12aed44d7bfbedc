"""The second pass of a round in several processes, each of which rewrites one group of segments at a time.

Outputs are yielded in order. Markers and transactional batches can be judged only after all earlier batches have been read. So
from the first group that has such a batch, or that a process failed to rewrite, this process rewrites the rest alone. Only errors
that occur then are raised.

Groups take longer if more of their records stay; these are mostly the last groups. The costliest groups of each window are
rewritten first, so that no process is left with a large group at the end. A whole window of outputs may therefore be complete
before the first of them is handed over.

Memory: children share the map with this process, because they only look up keys.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
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
"""Maximum number of groups in a stage: their indexes must fit into a pipe."""
WINDOW = 4
"""Number of groups in a window, per process."""


class Rewritten(NamedTuple):
    """The result of rewriting one group."""

    group: int
    outputs: tuple[OutputSegment, ...]
    stats: CleanStats


@dataclass(frozen=True, slots=True)
class GroupRewriters:
    """Rewrites groups in `processes` processes, including this one. The process that wrote an output calls `on_written`."""

    work: RoundWork
    survivors: MapSurvivors
    new_rewriter: Callable[[RoundWork], CompiledRewriter]
    on_written: Callable[[OutputSegment], None]
    processes: int

    def outputs(self, groups: Sequence[Sequence[SegmentPlan]]) -> Iterator[OutputSegment]:
        """Yield the outputs of the groups. Raises the errors of `rewrite_group`."""
        rewriter, needs_order = self.new_rewriter(self.work), False
        for groups_of_stage in _stages(self.work.plan, groups):
            done = 0
            if len(groups_of_stage) > 1 and not needs_order:
                try:
                    for outputs in self._stage(groups_of_stage):
                        yield from outputs
                        done += 1
                except _InOrder:
                    needs_order = True
            for group in groups_of_stage[done:]:
                self.survivors.go_to(group[0])
                for output in rewrite_group(self.work, rewriter, group):
                    self.on_written(output)
                    yield output
            needs_order |= rewriter.tracker.has_met_any

    def _stage(self, groups: Sequence[Sequence[SegmentPlan]]) -> Iterator[tuple[OutputSegment, ...]]:
        """Yield the outputs of each group. Raises _InOrder at the first group that depends on earlier ones or fails."""
        if not self.survivors.is_steady(groups[0][0], groups[-1][-1]):
            raise _InOrder
        self.survivors.go_to(groups[0][0])
        costs = [self.survivors.staying_in(group[0], group[-1]) for group in groups]
        order = costliest_first(costs, WINDOW * self.processes)
        stage = _Stage(self, groups, order)
        try:
            stage.begin(min(self.processes, len(groups)) - 1)
            yield from stage.results()
        finally:
            stage.end()


class _InOrder(Exception):
    """The remaining groups must be rewritten in order, by one process."""


class _Stage:
    """Groups that can be rewritten concurrently."""

    def __init__(
        self, rewriters: GroupRewriters, groups: Sequence[Sequence[SegmentPlan]], order: Sequence[int]
    ) -> None:
        self._of = rewriters
        self._groups = groups
        self._forks: list[Fork] = []
        self._found: dict[int, Rewritten] = {}
        self._next = 0
        """Index of the next group to hand over."""
        self._claims, claiming = os.pipe()
        # Whichever process reads the index of a group from this pipe rewrites the group.
        os.write(claiming, b"".join(map(_INDEX.pack, order)))
        os.close(claiming)

    def begin(self, children: int) -> None:
        """Start the children."""
        with suppress(OSError):  # if the system refuses more processes, continue with fewer
            for _ in range(children):
                self._forks.append(Fork(self._run_child))

    def results(self) -> Iterator[tuple[OutputSegment, ...]]:
        """Rewrite groups, and yield the outputs of all processes."""
        check_done = self._of.work.check_done
        rewritten = self._rewritten(replace(self._of.work, throttle=no_throttle))
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
        """End the children, and remove the outputs that were not handed over."""
        for fork in self._forks:
            fork.close()
        os.close(self._claims)
        for group in self._groups[self._next :]:
            for segment in group:
                _remove_cleaned(self._of.work, segment.base_offset)

    def _run_child(self, answering: Connection) -> None:
        alone = replace(self._of.work, check_done=never_done, throttle=no_throttle)
        with suppress(_InOrder):
            for rewritten in self._rewritten(alone):
                answering.send(rewritten)

    def _rewritten(self, work: RoundWork) -> Iterator[Rewritten]:
        """Claim and rewrite groups until none is left.

        Raises _InOrder at a group that depends on earlier ones or cannot be rewritten.
        """
        work = replace(work, stats=CleanStats())
        rewriter = self._of.new_rewriter(work)
        while index := os.read(self._claims, _INDEX.size):
            (at,) = _INDEX.unpack(index)
            group = self._groups[at]
            self._of.survivors.go_to(group[0])
            try:
                outputs = tuple(rewrite_group(work, rewriter, group))
                if rewriter.tracker.has_met_any:
                    raise _InOrder
                for output in outputs:
                    self._of.on_written(output)
            except CleaningAborted:
                raise
            except Exception as error:
                raise _InOrder from error
            yield Rewritten(at, outputs, work.stats.take())

    def _take(self, fork: Fork, check_done: Callable[[], None]) -> bool:
        """Receive one answer from a child; return False if there are no more."""
        try:
            rewritten: Rewritten = fork.answer(check_done)
        except ForkFailed:
            return False
        self._found[rewritten.group] = rewritten
        return True

    def _ready(self) -> Iterator[tuple[OutputSegment, ...]]:
        while self._next in self._found:
            self._of.work.check_done()
            rewritten = self._found.pop(self._next)
            self._next += 1
            self._of.work.stats.add(rewritten.stats)
            self._of.work.throttle(rewritten.stats.bytes_read + rewritten.stats.bytes_written)
            yield rewritten.outputs


def costliest_first(costs: Sequence[int], window: int) -> list[int]:
    """Return the indexes of groups, sorted by descending cost in each window of `window`; the first window may be smaller."""
    order: list[int] = []
    for end in range(len(costs), 0, -window):
        order[:0] = sorted(range(max(0, end - window), end), key=lambda index: -costs[index])
    return order


def _stages(plan: CleanPlan, groups: Sequence[Sequence[SegmentPlan]]) -> list[Sequence[Sequence[SegmentPlan]]]:
    """Divide the groups into those of the clean section, the one that spans both sections, and those of the dirty range.

    Each of these is further divided into stages of at most `MAX_GROUPS`.
    """
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
