"""Options that say where to find the schemas of values: in a directory of files or in a registry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from diamant.broker.commands.terminal.failures import fail, note
from diamant.cleaner.values.registry import registry_address
from diamant.cleaner.values.schema_places import SchemaPlaces

F = TypeVar("F", bound=Callable[..., Any])


def schema_options(command: F) -> F:
    """Add `--schema-directory`, `--registry` and the registry's login options; the command gets them as `places`."""

    @functools.wraps(command)
    def run(
        *args: Any,
        schema_directory: str | None,
        registry: str | None,
        registry_user: str | None,
        registry_token_file: str | None,
        registry_ca: str | None,
        **options: Any,
    ) -> Any:
        if registry is None and (registry_user or registry_token_file or registry_ca):
            raise click.UsageError("expected --registry URL with its user, token or CA")
        try:
            address = registry and registry_address(registry, registry_user, registry_token_file, registry_ca)
        except ValueError as error:
            fail(f"--registry: {error}", "bad-argument")
        except OSError as error:
            fail(f"--registry: {error.filename}: {error.strerror}")
        return command(*args, places=SchemaPlaces(schema_directory, address or None), **options)

    for option in reversed(
        (
            click.option(
                "--schema-directory",
                type=click.Path(exists=True, file_okay=False),
                help="Schemas in files: 42.avsc, 42.proto or 42.desc (a descriptor set) for the id 42, orders-value.avsc for "
                "all values of orders.",
            ),
            click.option("--registry", metavar="URL", help="A schema registry with Confluent's REST API."),
            click.option("--registry-user", metavar="NAME:PASSWORD-FILE", help="The registry's basic-auth login."),
            click.option(
                "--registry-token-file",
                type=click.Path(exists=True, dir_okay=False),
                help="A file with the bearer token for the registry.",
            ),
            click.option(
                "--registry-ca",
                type=click.Path(exists=True, dir_okay=False),
                help="PEM certificates to trust for the registry. Default: those of the system.",
            ),
        )
    ):
        run = option(run)
    return run  # type: ignore[return-value]


def note_problems(problems: Iterable[str]) -> None:
    """Print to standard error why schemas are missing."""
    for problem in problems:
        note(f"not decoded: {problem}")
