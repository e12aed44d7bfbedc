"""Events of logs that have changed: appended to, truncated, cleaned, or in any other way that a fetch may await."""

from __future__ import annotations

from collections.abc import Callable

from diamant.storage.log.log import Log

Listener = Callable[[Log], object]


class LogEvents:
    """Listeners are called in the order of their subscription, on the loop thread. They are in the path of every Produce."""

    def __init__(self) -> None:
        self._on_change: tuple[Listener, ...] = ()
        self._on_roll: tuple[Listener, ...] = ()

    def subscribe(self, on_change: Listener, on_roll: Listener | None = None) -> None:
        """Call `on_change` with each log that changes from now on, and `on_roll` with each that has closed a segment."""
        self._on_change = (*self._on_change, on_change)
        if on_roll is not None:
            self._on_roll = (*self._on_roll, on_roll)

    def changed(self, log: Log) -> None:
        """Tell every listener of a log that has changed."""
        for listener in self._on_change:
            listener(log)

    def rolled(self, log: Log) -> None:
        """Tell of a log that has closed a segment, or has to be flushed."""
        for listener in self._on_roll:
            listener(log)
