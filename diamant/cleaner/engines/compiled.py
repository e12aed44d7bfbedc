"""The compiled engine of the cleaner, which produces the same bytes as `plain_round`, but many times faster.

Memory: the map (`offset_map`), the current chunk (`row_records`, `compiled_rewriter`), and `batch_notes`.

Importing this module loads the kernels: import it only if `diamant.kernels.ARE_COMPILED`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from diamant.cleaner.engines.compiled_map import CompiledMap
from diamant.cleaner.engines.compiled_rewriter import CompiledRewriter
from diamant.cleaner.engines.round import AddSegments, Engine, RewriteGroups, Round
from diamant.cleaner.engines.survivors import MapSurvivors
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.facts.key_filter import is_worth_filters, leave_alone
from diamant.cleaner.facts.lost_key import Touched, kept_apart, only_known
from diamant.cleaner.facts.segment_keys import dirty_hashes, file_key_facts
from diamant.cleaner.rules.result import OnOutput, OutputSegment
from diamant.cleaner.segments.row_records import RowRecords

if TYPE_CHECKING:
    from array import array

    from diamant.cleaner.facts.key_filter import KeyFilter
    from diamant.cleaner.facts.segment_facts import SegmentFacts
    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.cleaner.segments.compiled_segment_writer import CompiledWriter

Divide: TypeAlias = Callable[[MapSurvivors, OnOutput], tuple[AddSegments, RewriteGroups]]
"""Returns functions that run the two passes in parts. They call the given `OnOutput` for each output that they have written."""


def new_round(work: RoundWork, divide: Divide | None = None) -> Round[CompiledWriter]:
    """Prepare a round of `work`. With `divide`, its two passes run in parts (`cleaner.parallel`)."""
    plan, records = work.plan, RowRecords(work.limits)
    key_map = CompiledMap(work, records)
    survivors = MapSurvivors(plan, key_map)
    new_rewriter = partial(CompiledRewriter, work, records, survivors)
    has_filters, touched = is_worth_filters(plan), dict[int, Touched]()

    def skip_untouched(plan: CleanPlan) -> CleanPlan:
        offsets = key_map.offsets
        if offsets.is_spilled:
            return plan
        plan = leave_alone(work.env, plan, lambda: dirty_hashes(offsets.table, offsets.size), on_touched=note_touched)
        return kept_apart(plan, touched)

    def note_touched(facts: SegmentFacts, key_filter: KeyFilter, hashes: array[int]) -> None:
        if (key_hash := only_known(key_filter, hashes)) is not None:
            touched[facts.base_offset] = Touched(facts, key_hash)

    def file_facts(output: OutputSegment) -> None:
        if has_filters:
            file_key_facts(work.env, plan, output, touched.get(output.base_offset))

    whole = partial(Round, work, key_map, new_rewriter, leave_alone=skip_untouched, close=key_map.close)
    if divide is None:
        return whole(on_written=file_facts)
    add, rewrite = divide(survivors, file_facts)
    return whole(add=add, rewrite=rewrite)


clean = Engine("compiled", new_round)
