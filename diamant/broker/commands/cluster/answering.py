"""The answer of a command on a cluster: text for people, JSON with --json.

    @click.command()
    @click.argument("names", nargs=-1, required=True)
    @answering(each="topic")
    def delete(client: KafkaClient, answer: Answer, names: Sequence[str]) -> None:
        for name in names:
            with answer.about(name):                             # an error ends this part, not the command
                ...
                answer.tell({"topic": name}, outcome="deleted")  # t: deleted     {"topic": "t", "outcome": "deleted"}

With --json, a command for several names prints a list of objects, others print one object. Failures are lines on standard error.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from diamant.broker.client.kafka_client import KafkaClient
from diamant.broker.commands.cluster.asking_kafka import EXPECTED, code_of, json_option, on_cluster, told
from diamant.broker.commands.terminal.failures import report, tell
from diamant.broker.operation_errors import EXIT_DONE

F = TypeVar("F", bound=Callable[..., Any])


class Answer:
    """The answer of one run of a command. `each`: if the command takes several names, what they name, such as topic."""

    def __init__(self, client: KafkaClient, each: str | None, *, as_json: bool) -> None:
        self._client = client
        self._each = each
        self._as_json = as_json
        self._told: list[Mapping[str, object]] = []
        self.exit_code = EXIT_DONE
        """The exit code of the last failure."""

    def tell(self, fields: Mapping[str, object], text: str = "", *, outcome: str | None = None) -> None:
        """Add a part. `outcome` is a word for what has changed. Without `text`, prints the first field's value and `outcome`."""
        if self._as_json:
            self._told.append(fields if outcome is None else {**fields, "outcome": outcome})
        else:
            tell(text or f"{next(iter(fields.values()))}: {outcome}")

    @contextmanager
    def about(self, name: str) -> Iterator[None]:
        """Report an error in the part for one of several names, and let the command continue with the next part."""
        try:
            yield
        except EXPECTED as error:
            self.exit_code = report(told(error), code_of(error), **{str(self._each): name})
            # Disconnect, because the next part must not read a late response to this one.
            self._client.close()

    def finish(self, *, has_failed: bool = False) -> None:
        """Print the JSON. After a failure there may be nothing to print."""
        if self._as_json and (self._told or not has_failed):
            tell(json.dumps(self._told if self._each else self._told[0]))


def answering(*, each: str | None = None) -> Callable[[F], F]:
    """Pass a command `client` and `answer`, and add `--json` and the options of `on_cluster`."""

    def decorate(command: F) -> F:
        @json_option
        @on_cluster
        @functools.wraps(command)
        def run(client: KafkaClient, *args: Any, as_json: bool, **options: Any) -> None:
            answer = Answer(client, each, as_json=as_json)
            try:
                command(client, answer, *args, **options)
            except BaseException:
                answer.finish(has_failed=True)
                raise
            answer.finish()
            sys.exit(answer.exit_code)

        return run  # type: ignore[return-value]

    return decorate
