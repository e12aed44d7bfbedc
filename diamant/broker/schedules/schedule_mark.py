"""Runs the tests marked `diamant_any_compaction`: a test goes through pytest's protocol once per schedule, with new fixtures."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import cast

import pytest
from _pytest.runner import runtestprotocol

from diamant.broker.schedules.schedule import Schedule
from diamant.broker.schedules.schedule_history import History
from diamant.broker.schedules.schedule_search import FoundSchedule, RunOutcome, find_failing

MARK = "diamant_any_compaction"
EXAMPLES = 50


@dataclass(slots=True)
class Example:
    """One run of the test."""

    schedule: Schedule
    history: History | None = None
    """The history of the test's broker; None until the broker exists."""


EXAMPLE = pytest.StashKey[Example]()


class _Untried(Exception):
    """Raised if the test skipped itself or fetched nothing."""


class MarkedTest:
    """The runs of one marked test."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self.failed: list[pytest.TestReport] = []
        """The reports of the last failed run."""

    def run(self, schedule: Schedule, nextitem: pytest.Item | None) -> tuple[list[pytest.TestReport], History]:
        """Run the test once."""
        example = self._item.stash[EXAMPLE] = Example(schedule)
        reports = runtestprotocol(self._item, log=False, nextitem=nextitem)
        return reports, example.history or History()

    def carry_out(self, schedule: Schedule) -> RunOutcome:
        """Run the test once as part of the search."""
        # With the test's parent as the next item, pytest keeps shared fixtures and tears down the test's own.
        reports, history = self.run(schedule, cast(pytest.Item, self._item.parent))
        has_passed = not any(report.failed for report in reports)
        if has_passed and (any(report.skipped for report in reports) or history.why_untried()):
            raise _Untried
        if not has_passed:
            self.failed = reports
        return RunOutcome(has_passed, history.fetches)


def run_marked(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Run a marked test under its schedules, and report one run: with the smallest failing schedule, or without compactions."""
    mark = item.get_closest_marker(MARK)
    assert mark is not None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = _reports(item, nextitem, **mark.kwargs)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def check_mark(item: pytest.Item) -> None:
    """Raise UsageError for a mark with invalid arguments."""
    mark = item.get_closest_marker(MARK)
    if mark is None:
        return
    examples = mark.kwargs.get("examples", EXAMPLES)
    if (
        mark.args
        or mark.kwargs.keys() - {"examples", "seed", "schedule", "late"}
        or not isinstance(examples, int)
        or examples < 1
    ):
        raise pytest.UsageError(
            f"{item.nodeid}: @pytest.mark.{MARK} takes examples= (1 or more), seed=, schedule= and late=, by name only"
        )


def _reports(
    item: pytest.Item,
    nextitem: pytest.Item | None,
    examples: int = EXAMPLES,
    seed: int | None = None,
    schedule: Schedule | None = None,
    late: bool = True,
) -> list[pytest.TestReport]:
    started_s = time.perf_counter()
    test = MarkedTest(item)
    tried = ""
    if schedule is None:
        seed = zlib.crc32(item.nodeid.encode()) if seed is None else seed
        try:
            # Leave one run for the report. It gets `nextitem`, so that pytest tears down fixtures that later tests do not use.
            found = find_failing(test.carry_out, examples - 1, seed, may_be_late=late)
        except _Untried:
            found = FoundSchedule(None, 0)
        schedule = found.schedule or Schedule()
        tried = f" (found by example {found.examples}, seed {seed})" if found.schedule is not None else ""
    reports, history = test.run(schedule, nextitem)
    why_untried = history.why_untried()
    for report in reports:
        if report.when == "call" and why_untried is not None and all(one.passed for one in reports):
            report.outcome, report.longrepr = "failed", f"{MARK}: {why_untried}"
            return reports
    has_failed = any(report.failed for report in reports)
    text = [f"@pytest.mark.{MARK}(schedule={schedule}){tried}", *history.lines()]
    if test.failed and not has_failed:
        text.append("Repeated under the same schedule, the test passed: it depends on something else, too.")
        reports = test.failed
    for report in reports:
        if report.when == "call":
            report.duration = time.perf_counter() - started_s
        if report.failed:
            if schedule == Schedule():
                text = ["The test fails without any compaction."]
            report.sections.append(("Compactions", "\n".join(text)))
    return reports
