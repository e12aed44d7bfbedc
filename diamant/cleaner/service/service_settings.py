"""The settings of the whole cleaner, and their division among rounds."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from diamant.cleaner.rules.modes import KAFKA_4_4, PROMPT
from diamant.cleaner.rules.plan_of_log import CleanerSettings, kafka_map_entries
from diamant.storage import names
from diamant.storage.env.env import Env

HASH_KEY_BYTES = 16


MIN_PAUSE_MS = 10
"""Shortest pause when there is nothing to do, even if `log.cleaner.backoff.ms` is less."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The cleaner's mode, and the broker configurations `log.cleaner.*` with Kafka's defaults."""

    mode: str = PROMPT
    kafka_version: str = KAFKA_4_4
    is_enabled: bool = True
    """False to clean logs only on request. In mode kafka this also disables retention of compacted logs."""
    threads: int = 1
    backoff_ms: int = 15_000
    dedupe_buffer_bytes: int = 134_217_728
    """Size for all threads together, like the I/O buffer size and the rate below."""
    load_factor: float = 0.9
    io_buffer_bytes: int = 524_288
    io_max_bytes_per_second: float = math.inf

    @property
    def pause_ms(self) -> int:
        """The pause of the loop when no log is due."""
        return max(self.backoff_ms, MIN_PAUSE_MS)

    def for_rounds(self, hash_key: bytes) -> CleanerSettings:
        """Return the settings for a round's plan, with one thread's share of the amounts."""
        return CleanerSettings(
            mode=self.mode,
            kafka_version=self.kafka_version,
            map_max_entries=kafka_map_entries(self.dedupe_buffer_bytes, self.load_factor, self.threads),
            map_load_factor=self.load_factor,
            map_memory_bytes=self.dedupe_buffer_bytes // self.threads,
            # Kafka has one buffer of this size to read and one to write.
            io_buffer_bytes=max(1, self.io_buffer_bytes // self.threads // 2),
            io_max_bytes_per_second=self.io_max_bytes_per_second / self.threads,
            threads=self.threads,
            hash_key=hash_key,
        )


def new_hash_key() -> bytes:
    """Return a random secret key."""
    return os.urandom(HASH_KEY_BYTES)


def kept_hash_key(env: Env, directory: str) -> bytes:
    """Return the secret key with which a log directory's record keys are hashed; create it if needed. Blocks on disk I/O.

    An attacker who knows the secret could construct record keys with colliding hashes.
    """
    path = f"{directory}/{names.HASH_KEY}"
    try:
        key = env.read_bytes(path)
        if len(key) == HASH_KEY_BYTES:
            return key
    except FileNotFoundError:
        pass
    key = new_hash_key()
    env.write_atomically(path, key)
    return key
