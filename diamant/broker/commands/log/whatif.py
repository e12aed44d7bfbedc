"""`diamant log whatif`: predict what the cleaner would leave of a log directory under other settings, and when.

With several values, the table shows how much each combination of settings would free.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NoReturn, TypeVar

import click

from diamant.broker.commands.settings.clean_settings import KAFKA_VERSION, parse_settings
from diamant.broker.commands.settings.mode_option import ChosenMode, chosen_mode, mode_option
from diamant.broker.commands.settings.topic_settings import TopicConfigs, topic_configs_of, with_topic_configs
from diamant.broker.commands.settings.value_hint import with_hint
from diamant.broker.commands.terminal.failures import fail
from diamant.broker.commands.terminal.files import one_line_errors, problem_fields, show_problem, time_text
from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.broker.config.broker_table import BROKER_CONFIGS
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.cleaner.forecast.forecast import (
    CLEAN,
    DELETE,
    WAITS_FOR_APPEND,
    WAITS_FOR_POLICY,
    WAITS_FOR_RATIO,
    WAITS_FOR_ROUND,
    WAITS_FOR_TIME,
    WAITS_FOR_TRANSACTION,
    Contents,
    Event,
    Forecast,
    Scenario,
)
from diamant.cleaner.rules.modes import KAFKA, followed_version
from diamant.cleaner.rules.record_kinds import NAMES, shown, used
from diamant.cleaner.rules.record_kinds import counted as kind_text
from diamant.cleaner.segments.tolerant_reader import OpenLogDirectory, PartitionFiles, Problem, open_log_directory
from diamant.duration import duration_text
from diamant.json_types import JsonObject
from diamant.storage.config_key import ConfigError
from diamant.storage.env.clocks import SystemClock
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.errors import StorageError
from diamant.words import counted, size_text


@dataclass(frozen=True, slots=True)
class Total:
    """The totals of one combination of settings over all partitions."""

    settings: Mapping[str, str]
    partitions: int
    bytes_before: int
    bytes_after: int
    """The total size of all `.log` files at the end of the forecast, or at the failure of a failed forecast."""
    failed: int
    """The number of failed forecasts."""

    @property
    def freed_bytes(self) -> int:
        """The freed bytes; negative if the files grow, for example with smaller segments."""
        return self.bytes_before - self.bytes_after


def totals(forecasts: Sequence[Sequence[Forecast]]) -> list[Total]:
    """Add up the forecasts of all partitions. Each partition has one forecast per combination, in the same order."""
    return [
        Total(
            settings=dict(column[0].settings),
            partitions=len(column),
            bytes_before=sum(one.before.bytes for one in column),
            bytes_after=sum(one.after.bytes for one in column),
            failed=sum(bool(one.failure) for one in column),
        )
        for column in zip(*forecasts, strict=True)
    ]


def _print_totals(found: Sequence[Total]) -> None:
    """Print one row for each combination."""
    rows = []
    for one in found:
        sign = "-" if one.freed_bytes < 0 else ""
        share = f"{100 * one.freed_bytes / one.bytes_before:.0f} %" if one.bytes_before else "-"
        cells = [
            f"{one.partitions:,} partitions",
            *one.settings.values(),
            size_text(one.bytes_before),
            size_text(one.bytes_after),
            sign + size_text(abs(one.freed_bytes)),
            f"{share}, {one.failed:,} FAILED" if one.failed else share,
        ]
        rows.append(cells)
    print_table([*map(TableColumn, ("total of", *found[0].settings, "size", "left", "freed", ""))], rows)


F = TypeVar("F", bound=Callable[..., object])

MIB = 1024 * 1024
MAX_COMBINATIONS = 64

LAYOUT_SETTINGS = ("segment.bytes", "internal.segment.bytes", "segment.ms", "segment.index.bytes")
"""Settings that determine segments. If one is given, a forecast rolls all segments as if the setting had always been in force."""

WAITING = {
    WAITS_FOR_POLICY: "the topic is not compacted",
    WAITS_FOR_APPEND: "the active segment is not cleaned, and only an append would close it",
    WAITS_FOR_TRANSACTION: "a transaction is open, and nothing after its first record is cleaned",
    WAITS_FOR_RATIO: "too little is dirty for min.cleanable.dirty.ratio, and max.compaction.lag.ms does not force a round",
    WAITS_FOR_TIME: "more will be cleaned or removed later",
    WAITS_FOR_ROUND: "expired tombstones are removed in the next round, and no round is due",
}

_BYTES_PER_BYTE = 4
"""How often a forecast reads its partition, estimated for the progress bar: two counts, all data, and the dirty part."""


def whatif_options(command: F) -> F:
    """Add the options shared by all forecasting commands."""
    for option in reversed(
        (
            click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated."),
            click.option(
                "--set",
                "-s",
                "settings",
                multiple=True,
                metavar="NAME=VALUE[,VALUE...]",
                help="A setting and its alternatives; see `diamant log clean`. Put brackets around a value that is a list.",
            ),
            mode_option,
            click.option("--now", "now_ms", type=int, metavar="MS", help="The start, in ms since 1970. Default: now."),
            click.option(
                "--until",
                "until_ms",
                type=int,
                metavar="MS",
                help="The end, in ms since 1970. Default: the last event.",
            ),
            click.option("--all", "is_all", is_flag=True, help="Also list the empty partitions of internal topics."),
            click.option(
                "--json", "as_json", is_flag=True, help="Print one JSON document, with every event of the forecasts."
            ),
            click.option(
                "--memory",
                "memory_mib",
                type=click.IntRange(min=1),
                default=256,
                show_default=True,
                metavar="MIB",
                help="Memory for counting keys. Keys that do not fit spill to temporary files.",
            ),
        )
    ):
        command = option(command)
    return command


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@whatif_options
def whatif(
    directory: str,
    *,
    topics: Sequence[str],
    settings: Sequence[str],
    mode: str | None,
    now_ms: int | None,
    until_ms: int | None,
    is_all: bool,
    as_json: bool,
    memory_mib: int,
) -> None:
    """Predict what settings would leave of DIRECTORY, a log directory or a partition directory, and when.

    Tries every combination of the given values, up to 64 combinations. The given settings override the topic's configuration in
    the directory's metadata (without metadata: cleanup.policy=compact and Kafka's defaults).

    The forecast assumes that from now on nothing is written and no transaction ends, and that a broker starts each cleaning round
    as early as these settings allow. With segment.bytes, segment.ms or segment.index.bytes, segments are rolled as if the setting
    had always been in force; records already removed stay removed. All other settings apply from now on.

    DIRECTORY is not changed. The rounds write up to twice the size of the largest partition to the temporary directory (TMPDIR).

    Exit codes: 0 done; 1 some files are damaged or unreadable, the rest is reported; 2 usage.
    """
    request = WhatIfRequest.of(settings, mode, now_ms, until_ms, memory_mib)
    env = RealEnv()
    with one_line_errors(), open_log_directory(env, directory) as opened:
        request.choose_mode(env, opened.path, mode)
        opened.keep_topics(topics)
        configs = topic_configs_of(env, opened)
        problems = list(opened.problems)
        found = []
        total = sum(partition.size for partition in opened.partitions) * len(request.combinations)
        with (
            LiveProgress(total) as bar,
            tempfile.TemporaryDirectory(prefix="diamant-whatif-") as scratch,
        ):
            for index, partition in enumerate(opened.partitions):
                scenarios = request.scenarios(partition.topic, configs)
                try:
                    os.mkdir(f"{scratch}/{index}")
                    forecasts = _forecasts(
                        env, opened, partition, scenarios, request, f"{scratch}/{index}", bar, problems
                    )
                    found.append((partition, forecasts))
                except (StorageError, OSError) as error:
                    problems.append(Problem.of(partition.directory, error))
        print_results(opened, request, found, problems, is_all=is_all, as_json=as_json)


@dataclass(slots=True)
class WhatIfRequest:
    """The validated command line."""

    combinations: list[dict[str, str]]
    mode: ChosenMode
    now_ms: int
    until_ms: int | None
    key_bytes: int

    @classmethod
    def of(
        cls, settings: Sequence[str], mode: str | None, now_ms: int | None, until_ms: int | None, memory_mib: int
    ) -> WhatIfRequest:
        """Validate the options of `whatif_options`. An invalid setting ends the command."""
        chosen = ChosenMode(mode or KAFKA)
        try:
            combinations = combine(settings)
            parse_settings([f"{name}={value}" for name, value in combinations[0].items()], chosen.mode)
        except ConfigError as error:
            fail(with_hint(error), "bad-argument")
        now_ms = SystemClock().now_ms() if now_ms is None else now_ms
        return cls(combinations, chosen, now_ms, until_ms, memory_mib * MIB)

    @property
    def kafka_version(self) -> str | None:
        """The Kafka version whose rules apply (see `followed_version`); None if it is not the same for all combinations."""
        default = BROKER_CONFIGS[KAFKA_VERSION].default
        versions = {one.get(KAFKA_VERSION, default) for one in self.combinations}
        return followed_version(self.mode.mode, str(versions.pop())) if len(versions) == 1 else None

    def choose_mode(self, env: Env, log_directory: str, given: str | None) -> None:
        """Set the mode for a log directory; `given` is the value of `--mode`, None without it."""
        self.mode = chosen_mode(env, log_directory, given)

    def scenarios(self, topic: str, configs: TopicConfigs | None) -> list[Scenario]:
        """Return the scenarios for a topic; an invalid one ends the command. `configs`: of all topics, or None if unknown."""
        topic_config = None if configs is None else configs.get(topic)
        try:
            return [self._scenario(topic_config, combination) for combination in self.combinations]
        except ConfigError as error:
            fail(with_hint(error), "bad-argument")

    def _scenario(self, topic_config: Mapping[str, str] | None, combination: Mapping[str, str]) -> Scenario:
        settings = [f"{name}={value}" for name, value in combination.items()]
        parsed = parse_settings(with_topic_configs(topic_config, settings), self.mode.mode)
        return Scenario(
            settings=combination,
            config=replace(parsed.config, segment_jitter_ms=0),
            cleaner=parsed.cleaner,
            producer_expiration_ms=parsed.producer_expiration_ms,
            is_laid_out_anew=any(name in combination for name in LAYOUT_SETTINGS),
        )


def combine(settings: Sequence[str]) -> list[dict[str, str]]:
    """Return all combinations of alternatives given as `name=value,value`. Raises ConfigError if there are too many."""
    alternatives: dict[str, list[str]] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigError(f"--set {setting!r}: expected NAME=VALUE or NAME=VALUE,VALUE...")
        values = alternatives.setdefault(name, [])
        values += [value for value in _split(name, text) if value not in values]
    count = 1
    for values in alternatives.values():
        count *= len(values)
    if count > MAX_COMBINATIONS:
        sizes = " x ".join(str(len(values)) for values in alternatives.values())
        raise ConfigError(f"{sizes} values make {count} combinations, expected at most {MAX_COMBINATIONS}")
    return [dict(zip(alternatives, values, strict=True)) for values in itertools.product(*alternatives.values())]


def _split(name: str, text: str) -> Iterator[str]:
    """Split `text` at the commas outside brackets, and yield the parts without their brackets."""
    depth = 0
    value = ""
    for letter in f"{text},":
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            value = value.strip()
            yield value[1:-1] if value.startswith("[") and value.endswith("]") else value
            value = ""
        else:
            value += letter
    if value:
        raise ConfigError(f"--set {name}={text}: a bracket is not closed")


def _forecasts(
    env: RealEnv,
    opened: OpenLogDirectory,
    partition: PartitionFiles,
    scenarios: list[Scenario],
    request: WhatIfRequest,
    scratch: str,
    bar: LiveProgress,
    problems: list[Problem],
) -> list[Forecast]:
    from diamant.cleaner.forecast.overlay_states import OverlayStates
    from diamant.cleaner.forecast.partition_forecast import forecast

    share = _Share(bar)
    states = OverlayStates(
        env,
        partition,
        opened.cleaner_checkpoint.get((partition.topic, partition.partition)),
        request.now_ms,
        RealEnv(),
        scratch,
        max_key_bytes=request.key_bytes,
        advance=share.advance,
        report=problems.append,
    )
    found = []
    for scenario in scenarios:
        share.begin(partition.size)
        found.append(forecast(states, scenario, request.until_ms))
        share.end()
    return found


class _Share:
    """A forecast's share of the progress bar. It is an estimate, because the amount to read is not known in advance."""

    def __init__(self, bar: LiveProgress) -> None:
        self._bar = bar
        self._left = 0

    def begin(self, size: int) -> None:
        self._left = size

    def advance(self, count: int) -> None:
        part = min(count // _BYTES_PER_BYTE, self._left)
        self._left -= part
        self._bar.advance(part)

    def end(self) -> None:
        self._bar.advance(self._left)
        self._left = 0


def print_results(
    opened: OpenLogDirectory,
    request: WhatIfRequest,
    found: Sequence[tuple[PartitionFiles, Sequence[Forecast]]],
    problems: Sequence[Problem],
    *,
    is_all: bool,
    as_json: bool,
) -> NoReturn:
    """Print the results and exit, with exit code 1 if there are problems or a forecast failed."""
    if as_json:
        click.echo(json.dumps(_document(opened, request, found, problems)))
    else:
        _print_tables(found, request, is_all=is_all)
        for problem in problems:
            show_problem(problem)
    sys.exit(1 if problems or any(one.failure for _, forecasts in found for one in forecasts) else 0)


# -- JSON --------------------------------------------------------------------------------------------------------------


def _document(
    opened: OpenLogDirectory,
    request: WhatIfRequest,
    found: Sequence[tuple[PartitionFiles, Sequence[Forecast]]],
    problems: Sequence[Problem],
) -> JsonObject:
    return {
        "log_directory": opened.path,
        "now_ms": request.now_ms,
        "until_ms": request.until_ms,
        "mode": request.mode.mode,
        "kafka_version": request.kafka_version,
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "forecasts": [one.to_fields() for one in forecasts],
            }
            for partition, forecasts in found
        ],
        "totals": [asdict(one) for one in totals([forecasts for _, forecasts in found])],
        "problems": [problem_fields(problem) for problem in problems],
    }


# -- tables ------------------------------------------------------------------------------------------------------------


def _print_tables(
    found: Sequence[tuple[PartitionFiles, Sequence[Forecast]]], request: WhatIfRequest, *, is_all: bool
) -> None:
    if request.mode.line:
        click.echo(f"{request.mode.line}\n")
    with_records = list(found)
    if not is_all and len(found) > 1:
        with_records = [(one, forecasts) for one, forecasts in found if one.size or one.topic not in INTERNAL_TOPICS]
    for partition, forecasts in with_records:
        _print_partition(partition, forecasts, request)
    if folded := len(found) - len(with_records):
        click.echo(f"and {counted(folded, 'empty partition')} of internal topics (--all shows them)")
    if len(found) > 1:
        _print_totals(totals([forecasts for _, forecasts in found]))


def _print_partition(partition: PartitionFiles, forecasts: Sequence[Forecast], request: WhatIfRequest) -> None:
    before = forecasts[0].before
    click.echo(f"{partition.name} at {time_text(request.now_ms)}: {_contents_text(before)}")
    names = list(forecasts[0].settings)
    heads = (*names, "closes", "overdue", "cleaned", "rounds", "last change")
    kinds = used(NAMES, [one.after.kinds for one in forecasts])
    left = ("segments", "size", *map(shown, kinds), "last horizon")
    rows = [
        [
            *one.settings.values(),
            after_text(one.rolls_ms, request.now_ms),
            after_text(one.overdue_ms, request.now_ms),
            after_text(one.cleaned_ms, request.now_ms),
            f"{sum(event.kind == CLEAN for event in one.events):,}",
            after_text(one.events[-1].at_ms if one.events else None, request.now_ms),
            f"{one.after.segments:,}",
            size_text(one.after.bytes),
            *(f"{getattr(one.after.kinds, kind):,}" for kind in kinds),
            after_text(one.tombstones_expire_ms, request.now_ms),
            "FAILED" if one.failure else ", ".join(one.waits_for) or "-",
        ]
        for one in forecasts
    ]
    print_table([*map(TableColumn, (*heads, *left)), TableColumn("waits for", is_text=True)], rows, repeated=len(names))
    if len(forecasts) == 1:
        for event in forecasts[0].events:
            click.echo(f"  {after_text(event.at_ms, request.now_ms)}: {_event_text(event)}")
    for reason in sorted({reason for one in forecasts for reason in one.waits_for}):
        click.echo(f"  waits for {reason}: {WAITING[reason]}")
    for failure in sorted({one.failure for one in forecasts if one.failure}):
        click.echo(f"  FAILED: {failure}")


def _contents_text(contents: Contents) -> str:
    kinds = [one for one in used(NAMES, [contents.kinds]) if one not in ("records", "markers")]
    return (
        f"{counted(contents.segments, 'segment')}, {size_text(contents.bytes)}, {counted(contents.kinds.records, 'record')} "
        f"({', '.join(kind_text(getattr(contents.kinds, one), one) for one in kinds)})"
    )


def _event_text(event: Event) -> str:
    left = f"{size_text(event.bytes)} in {counted(event.segments, 'segment')} left"
    if event.kind == CLEAN:
        removed = ", ".join(kind_text(count, reason) for reason, count in event.removed.items()) or "nothing"
        return f"cleaned up to offset {event.offset:,}, due by {event.because}; records removed: {removed}; {left}"
    if event.kind == DELETE:
        return f"segments below offset {event.offset:,} removed by retention; {left}"
    return f"the active segment closed by {event.because}; the next one begins at offset {event.offset:,}"


def after_text(time_ms: int | None, now_ms: int) -> str:
    """Format a time relative to `now_ms`: `now`, `+90ms`, `+2h 5m`, `-3d 4h`; `-` for never."""
    if time_ms is None:
        return "-"
    return f"{'+' * (time_ms > now_ms)}{duration_text(time_ms - now_ms)}" if time_ms != now_ms else "now"
