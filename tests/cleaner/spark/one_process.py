"""The part of a SparkContext that our jobs use, in this process, so that a job can be tested on hundreds of histories.

Rows are pickled whenever Spark would send them, and a shuffle changes their order.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Task = Callable[[int, Iterator[Any]], Iterable[Any]]


class OneProcess:
    """`seed` shuffles."""

    # Spark's names.
    defaultParallelism = 2
    master = "local[2]"
    _temp_dir: str | None = None

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.tasks: list[int] = []
        """Of each `parallelize`, how many."""

    def accumulator(self, value: int) -> Any:
        return _Accumulator(value)

    def broadcast(self, value: Any) -> Any:
        return _Broadcast(value)

    def parallelize(self, values: Iterable[Any], slices: int) -> Rows:
        found = list(values)
        assert len(found) == slices or not found
        self.tasks.append(slices)
        return Rows(self, lambda: [[value] for value in found] or [[]])

    def runJob(self, rows: Rows, work: Callable[[Iterator[Any]], Any], partitions: Sequence[int]) -> list[Any]:
        computed = rows.compute()
        return [value for index in partitions for value in work(iter(sent(computed[index])))]


class Rows:
    """Stands in for an RDD; the result of a shuffle is kept, as Spark keeps its files."""

    def __init__(self, context: OneProcess, compute: Callable[[], list[list[Any]]]) -> None:
        self._context = context
        self._compute = compute
        self._kept: list[list[Any]] | None = None

    def compute(self) -> list[list[Any]]:
        return self._compute()

    def mapPartitionsWithIndex(self, task: Task) -> Rows:
        return Rows(
            self._context, lambda: [list(task(index, iter(sent(rows)))) for index, rows in enumerate(self.compute())]
        )

    def mapPartitions(self, task: Callable[[Iterator[Any]], Iterable[Any]]) -> Rows:
        return self.mapPartitionsWithIndex(lambda _, rows: task(rows))

    def map(self, work: Callable[[Any], Any]) -> Rows:
        return self.mapPartitions(lambda rows: map(work, rows))

    def partitionBy(self, count: int, place: Callable[[Any], int]) -> Rows:
        def compute() -> list[list[Any]]:
            if shuffled._kept is None:
                shuffled._kept = [[] for _ in range(count)]
                for rows in self.compute():
                    for row in sent(rows):
                        shuffled._kept[place(row[0]) % count].append(row)
                for rows in shuffled._kept:
                    self._context.random.shuffle(rows)
            return shuffled._kept

        shuffled = Rows(self._context, compute)
        return shuffled

    def repartitionAndSortWithinPartitions(self, count: int, place: Callable[[Any], int]) -> Rows:
        return self.partitionBy(count, place).mapPartitions(lambda rows: sorted(rows, key=lambda row: row[0]))

    def collect(self) -> list[Any]:
        return [row for rows in self.compute() for row in sent(rows)]


class _Accumulator:
    def __init__(self, value: int) -> None:
        self.value = value

    def add(self, value: int) -> None:
        self.value += value


class _Broadcast:
    def __init__(self, value: Any) -> None:
        self.value = sent(value)


def sent(value: Any) -> Any:
    """Return a value as another process receives it."""
    return pickle.loads(pickle.dumps(value))
