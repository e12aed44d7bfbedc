"""Programs of the shop that keep their own copy of the customers, in SQLite, by following the topic with confluent-kafka."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from examples.forget_customer_42.shop import CUSTOMERS, QUIET, TOPICS

POLL_S = 0.05
LOOK_AGAIN_S = 0.01
TIMEOUT_S = 60.0


class CustomerCopy:
    """One such program: a consumer group, and a file of SQLite. `start` and `stop` as often as one likes."""

    def __init__(self, bootstrap: str, group: str, path: Path) -> None:
        self.group = group
        self.path = path
        self.tombstones_seen = 0
        self._bootstrap = bootstrap
        self._is_ending = threading.Event()
        self._is_at_end = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE customers (number TEXT PRIMARY KEY, name TEXT, email TEXT)")

    # -- the program -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Switch it on; it goes on behind the offset that its group has committed."""
        self._is_ending.clear()
        self._is_at_end.clear()
        self._thread = threading.Thread(target=self._run, name=self.group, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Switch it off."""
        self._is_ending.set()
        if self._thread is not None:
            self._thread.join(TIMEOUT_S)
            self._thread = None

    def catch_up(self) -> None:
        """Switch it on, let it read what there is, and switch it off."""
        self.start()
        try:
            self.wait_until(self._is_at_end.is_set, "has read everything")
        finally:
            self.stop()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Return as soon as something is so. TimeoutError after a minute, or what the program failed of."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.group}: expected within {TIMEOUT_S:.0f} s that it {what}")
            time.sleep(LOOK_AGAIN_S)

    # -- its database ----------------------------------------------------------------------------------------------------

    def knows(self, number: str) -> bool:
        """Whether a customer is in it."""
        with closing(sqlite3.connect(self.path)) as database:
            return database.execute("SELECT 1 FROM customers WHERE number = ?", (number,)).fetchone() is not None

    def size(self) -> int:
        """How many customers are in it."""
        with closing(sqlite3.connect(self.path)) as database:
            (count,) = database.execute("SELECT count(*) FROM customers").fetchone()
            return int(count)

    # -- its thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with closing(sqlite3.connect(self.path)) as database:
                self._follow(database)
        except (KafkaException, sqlite3.Error, ValueError) as error:
            self._failure = error

    def _follow(self, database: sqlite3.Connection) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                **QUIET,
            }
        )
        consumer.subscribe([CUSTOMERS])
        read_up: set[int | None] = set()
        is_committed = True
        try:
            while not self._is_ending.is_set():
                message = consumer.poll(POLL_S)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    self._apply(database, message)
                    read_up.discard(message.partition())
                    is_committed = False
                    continue
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                # First the copy is safe, then the group has passed it.
                database.commit()
                if not is_committed:
                    consumer.commit(asynchronous=False)
                    is_committed = True
                read_up.add(message.partition())
                if len(read_up) == TOPICS[CUSTOMERS].partitions:
                    self._is_at_end.set()
        finally:
            consumer.close()

    def _apply(self, database: sqlite3.Connection, message: Message) -> None:
        """Do to the copy what the record says: a value is written, a tombstone deletes."""
        number, value = (message.key() or b"").decode(), message.value()
        if value is None:
            self.tombstones_seen += 1
            database.execute("DELETE FROM customers WHERE number = ?", (number,))
            return
        customer = json.loads(value)
        row = (number, customer["name"], customer["email"])
        database.execute("INSERT OR REPLACE INTO customers VALUES (?, ?, ?)", row)
