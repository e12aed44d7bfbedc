"""`diamant log person forget`: forget a person in a log directory that no broker is using.

The command runs a broker of its own on the directory, so everything works as with `diamant person forget`. After its start, the
broker accepts no connections. Its cleaner and retention are off, so that only the person's data is removed.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import wait
from typing import Any

import click

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.client.admin import AdminError
from diamant.broker.commands.person.forget import forget_options, forget_person
from diamant.broker.commands.settings.mode_option import chosen_mode
from diamant.broker.commands.settings.schema_options import schema_options
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.failures import fail
from diamant.broker.commands.terminal.remote import one_line_errors
from diamant.broker.dispatch.operation_table import OPERATIONS
from diamant.broker.operation_errors import OperationError
from diamant.broker.operations.calls.parameters import params_of
from diamant.broker.perform import perform
from diamant.cleaner.values.schema_places import SchemaPlaces
from diamant.json_types import JsonObject
from diamant.progress import Progress
from diamant.storage import names
from diamant.storage.env.env import RealEnv

LOOK_AGAIN_S = 0.5


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@forget_options
@schema_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def forget(directory: str, *, places: SchemaPlaces, as_json: bool, **fields: Any) -> None:
    """Forget the person identified by NAME=VALUE in DIRECTORY, the log directory of a stopped Diamant or Kafka broker.

    Works like `diamant person forget`. Opens DIRECTORY in the same way as a broker that starts on it, even with --dry-run.

    Exit codes: the same as for `diamant person forget`; also 1 while a broker is running on DIRECTORY.
    """
    env = RealEnv()
    if not env.exists(f"{directory}/{names.META_PROPERTIES}"):
        fail(
            f"{directory}: expected the log directory of a broker, with {names.META_PROPERTIES} and the metadata log",
            "bad-argument",
        )
    resting = {
        "log.cleaner.enable": "false",
        "log.retention.check.interval.ms": str(2**63 - 1),
        "diamant.cleaner.mode": chosen_mode(env, directory, None).mode,
    }
    try:
        with one_line_errors(), Broker(data_dir=directory, properties={**resting, **_schemas(places)}) as broker:
            broker.loop.call_soon_threadsafe(broker.services.server.stop_accepting)
            asked = _AskedHere(broker, directory, as_json=as_json)
            here = _Here(broker)
            forget_person(asked, here, here.certificate, registry=None, **fields)
    except CannotStart as error:
        fail(error.reason)


def _schemas(places: SchemaPlaces) -> dict[str, str]:
    """Convert the options that say where to find schemas to broker configurations."""
    registry = places.registry
    found = {
        "directory": places.directory,
        "registry.url": registry and registry.url,
        "registry.basic.auth.user.info": registry and registry.user_info,
        "registry.bearer.auth.token": registry and registry.token,
        "registry.ssl.ca.location": registry and registry.ca_file,
    }
    return {f"diamant.schema.{name}": value for name, value in found.items() if value}


class _AskedHere(Asked):
    """A run of a command against the broker in the same process."""

    def __init__(self, broker: BlockingBroker, directory: str, *, as_json: bool) -> None:
        super().__init__(broker.bootstrap_servers, None, 0, as_json=as_json)
        self._directory = directory

    def command(self, *words: str) -> str:
        """Return the command that starts a broker on the directory; that broker continues the work. Ignores `words`."""
        del words
        return shlex.join(["diamant", "start", "--data", self._directory])


class _Here:
    """A replacement for `admin.person` that calls the broker in the same process."""

    def __init__(self, broker: BlockingBroker) -> None:
        self._broker = broker

    def preview(self, identifiers: Mapping[str, Any], map: Mapping[str, Any], **given: Any) -> JsonObject:
        """See `admin.person.preview`."""
        return self._perform("person.preview", {"identifiers": identifiers, "map": map, **given})

    def preview_each(self, subjects: Sequence[Mapping[str, Any]], map: Mapping[str, Any], **given: Any) -> JsonObject:
        """See `admin.person.preview_each`."""
        return self._perform("person.preview_each", {"subjects": subjects, "map": map, **given})

    def forget_each(self, subjects: Sequence[Mapping[str, Any]], map: Mapping[str, Any], **given: Any) -> JsonObject:
        """See `admin.person.forget_each`."""
        return self._perform("person.forget_each", {"subjects": subjects, "map": map, **given})

    def forget(self, identifiers: Mapping[str, Any], map: Mapping[str, Any], **given: Any) -> JsonObject:
        """See `admin.person.forget`."""
        return self._perform("person.forget", {"identifiers": identifiers, "map": map, **given})

    def certificate(self, id: str) -> JsonObject:
        """See `admin.certificate`."""
        return dict(self._broker.certificate(id))

    def _perform(self, name: str, given: Mapping[str, Any]) -> JsonObject:
        progress = Progress()
        taken = {one.name for one in params_of(OPERATIONS[name].request_class())} - {"timeout"}
        fields = {name: value for name, value in given.items() if name in taken}

        async def look() -> JsonObject:
            return progress.to_fields()

        work: Coroutine[Any, Any, Any] = perform(self._broker.awaited, name, {**fields, "progress": progress})
        future = asyncio.run_coroutine_threadsafe(work, self._broker.loop)
        while not wait([future], LOOK_AGAIN_S).done:
            given["on_progress"](self._broker.call(look()))
        try:
            found: Any = future.result()
        except OperationError as error:
            raise AdminError(str(error), code=error.code) from None
        return found if isinstance(found, dict) else dict(found.to_fields())
