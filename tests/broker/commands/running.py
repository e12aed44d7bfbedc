"""Runs commands in this process against a test's broker."""

from __future__ import annotations

from click.testing import CliRunner, Result

from diamant.broker.broker import BlockingBroker
from diamant.broker.cli import main
from diamant.broker.client.bootstrap import BOOTSTRAP_VARIABLE


def run(broker: BlockingBroker, *words: str, lines: str = "") -> Result:
    """Run a command that finds the broker through the environment, with `lines` as its input."""
    return CliRunner().invoke(main, words, env={BOOTSTRAP_VARIABLE: broker.bootstrap_servers}, input=lines)
