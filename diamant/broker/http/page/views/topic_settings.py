"""The settings of a topic with their documentation, and a preview of each change."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aiohttp import web

from diamant.broker.config.topic_values import describe_topic_configs, log_config
from diamant.broker.handlers.configs.alter_topic import change_topic_configs
from diamant.broker.handlers.configs.changes import stored_configs
from diamant.broker.http.page.making.rendering import HEADERS, fragment, page, refused, shown_call, view
from diamant.broker.http.serving.authorization import CONFIGS, SET_CONFIGS
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operations.calls.parameters import Param
from diamant.cleaner.rules.eligibility import SegmentView
from diamant.cleaner.rules.retention import deletable_segments
from diamant.duration import duration_text
from diamant.protocol.kraft.records import TOPIC_RESOURCE
from diamant.storage.config_key import ConfigSource, DescribedConfig
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig
from diamant.words import counted, size

NO_LIMIT = str((1 << 63) - 1)
SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "set for this topic",
    ConfigSource.DEFAULT_CONFIG: "default",
}


class Setting(NamedTuple):
    """A setting in the list."""

    name: str
    value: str
    readable: str
    """The value in larger units; empty if that would not make it clearer."""
    source: str
    is_own: bool
    documentation: str


@dataclass(frozen=True, slots=True)
class _Retained:
    """The state of a log that retention depends on, with changed settings."""

    segments: Sequence[SegmentView]
    config: LogConfig
    log_start_offset: int
    size: int


def readable(name: str, value: str | None) -> str:
    """Return a time or a size in larger units; empty for other values."""
    if value is None or not value.lstrip("-").isdigit():
        return ""
    number = int(value)
    if number < 0 or value == NO_LIMIT:
        return "no limit" if name.endswith((".ms", ".bytes", "messages")) else ""
    if name.endswith(".ms") and number >= 1000:
        return duration_text(number)
    return size(number) if name.endswith(".bytes") and number >= 1000 else ""


def _setting(one: DescribedConfig) -> Setting:
    value = one.value or ""
    return Setting(
        one.name,
        value,
        readable(one.name, value),
        SOURCES.get(one.source, "set for the broker"),
        one.source is ConfigSource.DYNAMIC_TOPIC_CONFIG,
        one.documentation,
    )


def _settings(call: Call, overrides: Mapping[str, str]) -> list[DescribedConfig]:
    return describe_topic_configs(overrides, call.services.node.config)


async def show(call: Call) -> web.StreamResponse:
    """Return the view. Raises NotFound."""
    topic = call.path["topic"]
    call.services.explain().logs(topic, None)
    found = [_setting(one) for one in _settings(call, stored_configs(call.services.node, TOPIC_RESOURCE, topic))]
    found.sort(key=lambda one: not one.is_own)
    return page("settings.html.j2", {"topic": topic, "settings": found}, title=f"{topic}, settings", view="Topics")


async def preview(call: Call) -> web.StreamResponse:
    """Return the effects of a change, and the form that applies it. Raises NotFound, BadArgument."""
    topic, name, value = call.path["topic"], call.fields["name"], call.fields["value"]
    logs = call.services.explain().logs(topic, None)
    node = call.services.node
    before = stored_configs(node, TOPIC_RESOURCE, topic)
    change_topic_configs(node, topic, {name: value}, validate_only=True)
    after = {**before, name: value} if value is not None else {key: one for key, one in before.items() if key != name}
    old = next(one for one in _settings(call, before) if one.name == name)
    new = next(one for one in _settings(call, after) if one.name == name)
    fields = {"topic": topic, "set": {name: value}}
    option = f"--config {shlex.quote(f'{name}={value}')}" if value is not None else f"--unset {name}"
    context = {
        "name": name,
        "old": _setting(old),
        "new": _setting(new),
        "is_same": (old.value, old.source) == (new.value, new.source),
        "effects": list(_effects(logs, log_config(after, node.config), name, node.env.clock.now_ms())),
        "call": shown_call(
            call, "POST", "/v1/configs", fields, f"diamant topic alter {topic} {option}",
            f"diamant.Admin().alter_configs({topic!r}, { {name: value}!r})",
        ),
    }  # fmt: skip
    text = fragment("settings_change.html.j2", context)
    return web.Response(text=text, content_type="text/html", charset="utf-8", headers=HEADERS)


def _effects(logs: Sequence[Log], config: LogConfig, name: str, now_ms: int) -> Iterator[str]:
    """Yield sentences about the effects of a changed setting on the current data."""
    if name in ("cleanup.policy", "retention.ms", "retention.bytes"):
        yield _retention_text(logs, config, now_ms)
    if name == "cleanup.policy":
        was_compacted = any(log.config.is_compacted for log in logs)
        if config.is_compacted and not was_compacted:
            yield "From then on, only the latest value of each key is kept and, as in Kafka, records without a key are refused."
        if was_compacted and not config.is_compacted:
            yield "The topic is no longer compacted: superseded values stay until retention removes their segments."
    if name == "min.compaction.lag.ms":
        yield "A superseded value can be read for at least this long after it was written."
    if name == "max.compaction.lag.ms" and config.is_compacted:
        yield "In mode prompt, a superseded value is removed within this time. If some are already older, a round may start now."
    if name == "delete.retention.ms":
        yield "Tombstones that already have a delete horizon keep it. Those that get one in a later round stay for this time."
    if name in ("segment.ms", "segment.bytes"):
        yield "The new value applies to active segments at their next check or append. Closed segments stay as they are."


def _retention_text(logs: Sequence[Log], config: LogConfig, now_ms: int) -> str:
    gone = lost = 0
    for log in logs:
        count = deletable_segments(_Retained(log.segments, config, log.log_start_offset, log.size), now_ms)
        gone += count
        lost += sum(segment.size for segment in log.segments[:count])
    if not gone:
        return "Retention would remove none of the current segments."
    return f"Retention would remove {counted(gone, 'segment')} ({size(lost)}) at its next check. This cannot be undone."


ROUTES = (
    view("/topics/{topic}/settings", show, "The settings of a topic.", CONFIGS),
    Route(
        "POST",
        "/topics/{topic}/settings",
        preview,
        "A preview.",
        fields=(
            Param("name", "string", "The setting.", is_required=True),
            Param("value", "string", "The new value. Default: the broker's value."),
        ),
        changes_data=True,
        refuse=refused,
        permission=SET_CONFIGS,
    ),
)
