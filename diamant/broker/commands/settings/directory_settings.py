"""The settings of the compacted topics in a log directory, from its metadata log and from --set."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from diamant.broker.commands.settings.clean_settings import parse_settings
from diamant.broker.commands.settings.topic_settings import (
    CLEANUP_POLICY,
    names_set,
    read_topic_configs,
    with_topic_configs,
)
from diamant.cleaner.offline.offline_clean import PartitionSettings
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError


class DirectorySettings:
    """The settings of each topic. The constructor raises StorageError if it needs the metadata log and cannot read it."""

    def __init__(
        self, env: Env, directory: str, overrides: Sequence[str], mode: str, *, topics: Collection[str], hint: str
    ) -> None:
        """`topics`: the wanted topics; empty for all compacted topics. `hint` says how to name topics."""
        self._topics = topics
        self._overrides = overrides
        self._mode = mode
        self._is_told = is_told = CLEANUP_POLICY in names_set(overrides) or bool(topics)
        try:
            self._configs = read_topic_configs(env, directory)
        except (StorageError, OSError) as error:
            if not is_told:
                raise StorageError(f"{error}; use --set cleanup.policy=compact to clean all topics anyway") from error
            self._configs = None
        if self._configs is None and not is_told:
            raise StorageError(
                f"{directory} has no metadata log, so its compacted topics are unknown: {hint}, or clean all topics with --set "
                "cleanup.policy=compact"
            )

    def of(self, topic: str) -> PartitionSettings | None:
        """Return the settings of a topic; None if it is not wanted."""
        if self._topics and topic not in self._topics:
            return None
        configs = None if self._configs is None else self._configs.get(topic)
        if configs is None and not self._is_told:
            return None  # the topic is not known to be compacted
        return parse_settings(with_topic_configs(configs, self._overrides), self._mode)


@contextmanager
def locked_directory(env: Env, directory: str) -> Iterator[None]:
    """Lock a log directory against brokers. Raises StorageError if a broker is using it."""
    lock = env.lock(f"{directory}/{names.LOCK}")
    try:
        yield
    finally:
        lock.release()
