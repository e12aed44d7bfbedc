"""Topic configurations from the metadata log of a log directory, as settings for cleaning and forecasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from diamant.broker.config.topic_table import TOPIC_CONFIGS
from diamant.cleaner.segments.tolerant_reader import OpenLogDirectory, Problem
from diamant.protocol.kraft.records import TOPIC_RESOURCE
from diamant.storage.config_key import ConfigError
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.kraft.format import metadata_directory
from diamant.storage.kraft.replay import load_metadata

CLEANUP_POLICY = "cleanup.policy"
SEGMENT_BYTES = ("segment.bytes", "internal.segment.bytes")
"""Two names of one setting; the second name has no minimum."""

TopicConfigs: TypeAlias = Mapping[str, Mapping[str, str]]
"""The configurations of each topic. A topic without configurations has an empty entry."""


def read_topic_configs(env: Env, log_directory: str) -> TopicConfigs | None:
    """Read topic configurations from the metadata log; None if there is none. Raises StorageError or OSError if that fails."""
    path = metadata_directory(log_directory)
    if not env.exists(path):
        return None
    image = load_metadata(env, path).image
    return {name: image.configs.get((TOPIC_RESOURCE, name), {}) for name in image.topics}


def topic_configs_of(env: Env, opened: OpenLogDirectory) -> TopicConfigs | None:
    """Read the topic configurations of an opened directory. If that fails, add a problem to `opened` and return None."""
    try:
        return read_topic_configs(env, opened.path)
    except (StorageError, OSError) as error:
        opened.problems.append(Problem(metadata_directory(opened.path), None, str(error)))
        return None


def assumed_line(opened: OpenLogDirectory, configs: TopicConfigs | None, settings: Sequence[str]) -> str:
    """Return a line that names the topics for which a cleanup.policy is assumed; empty if there are none."""
    topics = {one.topic for one in opened.partitions} - {*(configs or ())}
    if CLEANUP_POLICY in names_set(settings) or not topics:
        return ""
    which, why = ", ".join(sorted(topics)), "not in the metadata log"
    if configs is None:
        which, why = "all topics", f"no metadata log can be read in {opened.path}"
    return f"Assumed for {which}: {CLEANUP_POLICY}=compact and Kafka's defaults ({why})."


def with_topic_configs(configs: Mapping[str, str] | None, settings: Sequence[str]) -> list[str]:
    """Return the topic's configurations followed by `settings`, which override them, all as NAME=VALUE.

    `configs` is None for an unknown topic. Omits configurations that Diamant does not know, and invalid values.
    """
    if configs is None:
        return list(settings)
    replaced = names_set(settings)
    if replaced & {*SEGMENT_BYTES}:
        replaced |= {*SEGMENT_BYTES}
    known = {CLEANUP_POLICY: "delete", **configs}
    return [
        *(f"{name}={value}" for name, value in known.items() if name not in replaced and _is_valid(name, value)),
        *settings,
    ]


def names_set(settings: Sequence[str]) -> set[str]:
    """Return the names in strings of the form NAME=VALUE."""
    return {setting.partition("=")[0].strip() for setting in settings}


def _is_valid(name: str, value: str) -> bool:
    try:
        return name in TOPIC_CONFIGS and TOPIC_CONFIGS[name].parse(value) is not None
    except ConfigError:
        return False
