"""`diamant clock`: show or move a broker's clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.failures import duration
from diamant.broker.commands.terminal.files import time_text
from diamant.broker.commands.terminal.lazy import LazyGroup
from diamant.broker.commands.terminal.remote import asking
from diamant.duration import duration_text, parse_time_ms

_SESSIONS = click.option(
    "--sessions",
    is_flag=True,
    help="Also advance group members' session and rebalance timeouts, which removes idle members.",
)


def time(text: str) -> int:
    """Convert a command-line argument to a time in milliseconds since 1970."""
    try:
        return parse_time_ms(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group(cls=LazyGroup, invoke_without_command=True)
@click.pass_context
def clock(ctx: click.Context) -> None:
    """Show the clock of a broker, or move it if the broker was started with --clock manual."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        ctx.exit(2)


@clock.command()
@asking
def show(asked: Asked) -> None:
    """Print the clock's time and whether it can be moved."""
    found = asked.admin.clock.get()
    asked.show(found, lambda console: _print(console, found))


@clock.command()
@click.argument("by_ms", type=duration, metavar="DURATION")
@_SESSIONS
@asking
def advance(by_ms: int, sessions: bool, asked: Asked) -> None:
    """Move the clock forward by DURATION, such as 8d or 1h30m.

    Returns once all work that is due by then is done: segments are closed, logs cleaned, expired data removed.

    Exit codes: 0 done; 1 failed, or a job failed along the way (its name is printed); 2 usage.
    """
    moved = asked.admin.clock.advance(by_ms, sessions=sessions, timeout=asked.timeout_s, on_progress=asked.on_progress)
    _show_move(asked, moved)


@clock.command(name="set")
@click.argument("to_ms", type=time, metavar="TIME")
@_SESSIONS
@asking
def set_to(to_ms: int, sessions: bool, asked: Asked) -> None:
    """Move the clock forward to TIME: milliseconds since 1970, or ISO 8601, in UTC unless it has a time zone.

    Exit codes: 0 done; 1 failed, or a job failed along the way (its name is printed); 2 usage, or a time in the past.
    """
    moved = asked.admin.clock.set(to_ms, sessions=sessions, timeout=asked.timeout_s, on_progress=asked.on_progress)
    _show_move(asked, moved)


@clock.command()
@asking
def freeze(asked: Asked) -> None:
    """Stop the clock until it is moved or resumed."""
    found = asked.admin.clock.freeze()
    asked.show(found, lambda console: _print(console, found))


@clock.command()
@asking
def resume(asked: Asked) -> None:
    """Resume a frozen clock from its current time, at the speed of real time."""
    found = asked.admin.clock.resume()
    asked.show(found, lambda console: _print(console, found))


def _show_move(asked: Asked, moved: Mapping[str, Any]) -> None:
    def show(console: Console) -> None:
        stops = moved["stops"]
        what = duration_text(moved["to_ms"] - moved["from_ms"])
        took = duration_text(moved["duration_ms"])
        console.print(f"advanced by {what}; the work due at {stops} moment{'' if stops == 1 else 's'} took {took}")
        for problem in moved["problems"]:
            console.print(f"[bold red]failed:[/] {problem} (see the broker's log for the cause)")
        _print(console, moved["clock"])

    asked.show(moved, show)
    if moved["problems"]:
        raise SystemExit(1)


def _print(console: Console, found: Mapping[str, Any]) -> None:
    console.print(clock_text(found))


def clock_text(found: Mapping[str, Any]) -> str:
    """Describe a clock, with its time and kind, in console markup."""
    ahead_ms = found["ahead_ms"]
    if found["kind"] == "system":
        relation = "the system's clock"
    elif abs(ahead_ms) < 1000:
        relation = "a manual clock, at the system's time"
    else:
        relation = (
            f"a manual clock, {duration_text(abs(ahead_ms))} {'ahead of' if ahead_ms > 0 else 'behind'} the system's"
        )
    frozen = ", frozen" if found["is_frozen"] else ""
    return f"[bold]{time_text(found['now_ms'])}[/] ({found['now_ms']}), {relation}{frozen}"
