"""Events of changed logs: appends, truncations, cleanings, and any other change that a fetch may await."""

from __future__ import annotations

from collections.abc import Callable

from diamant.storage.log.log import Log

Listener = Callable[[Log], object]


class LogEvents:
    """Calls the listeners in order of subscription, on the loop thread. They are in the path of every Produce."""

    def __init__(self) -> None:
        self._on_change: tuple[Listener, ...] = ()
        self._on_roll: tuple[Listener, ...] = ()

    def subscribe(self, on_change: Listener, on_roll: Listener | None = None) -> None:
        """Call `on_change` with each changed log from now on, and `on_roll` with each log that has closed a segment."""
        self._on_change = (*self._on_change, on_change)
        if on_roll is not None:
            self._on_roll = (*self._on_roll, on_roll)

    def changed(self, log: Log) -> None:
        """Notify every listener of a changed log."""
        for listener in self._on_change:
            listener(log)

    def rolled(self, log: Log) -> None:
        """Notify the listeners of a log that has closed a segment or must be flushed."""
        for listener in self._on_roll:
            listener(log)
