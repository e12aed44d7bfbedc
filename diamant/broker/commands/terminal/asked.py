"""One run of a command against a running broker: its client, the output on the terminal, and the progress of the job."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from diamant.broker.client.admin import CONNECT_TIMEOUT_S, Admin, AdminError
from diamant.broker.client.bootstrap import CA_VARIABLE, SYSTEM_CA, USER_VARIABLE, default_bootstrap
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.progress_text import LiveProgress, progress_text

if TYPE_CHECKING:
    import ssl

    from diamant.broker.client.login import Login

TOKEN_VARIABLE = "DIAMANT_TOKEN_FILE"  # noqa: S105  (the name of a variable)


class Asked:
    """One run of a command against a running broker."""

    def __init__(
        self,
        bootstrap: str,
        token_file: str | None,
        timeout_ms: int,
        *,
        as_json: bool,
        user: str | None = None,
        ca: str | None = None,
        command_config: str | None = None,
    ) -> None:
        login, tls = _login(user), None
        if command_config is not None:
            bootstrap, login, tls = _configured(command_config, bootstrap)
        self.bootstrap = bootstrap
        self.timeout_s = timeout_ms / 1000
        self.as_json = as_json
        self.admin = Admin(bootstrap, token_file=token_file, timeout=self.timeout_s, login=login, ca=ca, tls=tls)
        self.job: str | None = None
        """The ID of the job in progress, once the broker has returned it."""
        self.has_begun = False
        """True once a job was requested from the broker."""
        self._token_file = token_file
        self._user = user
        self._ca = ca
        self._command_config = command_config
        self._progress = LiveProgress(is_shown=not as_json)

    @property
    def waiting(self) -> Mapping[str, Any]:
        """The arguments of a call that may take a long time: its timeout and its progress listener."""
        return {"timeout": self.timeout_s, "on_progress": self.on_progress}

    def check_ready(self) -> None:
        """Connect, and query the broker's API versions, which needs no login. Raises AdminError if no answer arrives in time."""
        from diamant.broker.client.client_config import trusting
        from diamant.broker.client.kafka_client import KafkaClient
        from diamant.broker.client.kafka_connection import ConnectionFailed

        tls = None if self._ca is None else trusting(None if self._ca == SYSTEM_CA else self._ca)
        timeout_s = min(CONNECT_TIMEOUT_S, self.timeout_s)
        try:
            with KafkaClient(self.bootstrap, timeout_s=timeout_s, tls=tls) as client:
                client.any_broker()
        except (ConnectionFailed, ValueError) as error:
            raise AdminError(str(error)) from None

    def command(self, *words: str) -> str:
        """Return another command for the same broker, ready to paste into a shell."""
        options = [] if self.bootstrap == default_bootstrap() else ["-b", self.bootstrap]
        if self._token_file not in (None, os.environ.get(TOKEN_VARIABLE)):
            options += ["--token-file", str(self._token_file)]
        if self._user not in (None, os.environ.get(USER_VARIABLE)):
            options += ["--user", str(self._user)]
        if self._ca not in (None, os.environ.get(CA_VARIABLE)):
            options += ["--ca", str(self._ca)]
        if self._command_config is not None:
            options += ["--command-config", self._command_config]
        return shlex.join(["diamant", *words, *options])

    def show(self, fields: Mapping[str, Any], show: Callable[[Console], object]) -> None:
        """Print an answer: as JSON with --json, otherwise by calling `show` with a console."""
        self.end_progress()
        if self.as_json:
            click.echo(json.dumps(fields))
        else:
            show(Console())

    def on_progress(self, progress: Mapping[str, Any]) -> None:
        """Show the progress of a job on standard error, if that is a terminal."""
        if "job" in progress:  # Work that the command does itself has no job.
            self.job, self.has_begun = progress["job"], True
        self._progress.show(progress_text(progress))

    def end_progress(self) -> None:
        """Clear the progress line before other output. The next `on_progress` shows it again."""
        self._progress.hide()


def _configured(path: str, bootstrap: str) -> tuple[str, Login | None, ssl.SSLContext | None]:
    """Read the address, the login and the TLS context from a properties file. Raises AdminError if a property is invalid."""
    from diamant.broker.client.client_properties import configured
    from diamant.broker.operation_errors import BadArgument

    try:
        return configured(path, bootstrap)
    except BadArgument as error:
        raise AdminError(str(error), status=400, code="bad-argument") from None


def _login(user: str | None) -> Login | None:
    if not user:
        return None
    from diamant.broker.client.login import read_login
    from diamant.broker.operation_errors import BadArgument

    try:
        return read_login(user)
    except BadArgument as error:
        raise AdminError(f"--user {error}", status=400, code="bad-argument") from None
