"""`diamant log fold-brokers`: turn the data directory of several brokers into that of a single broker."""

from __future__ import annotations

import json

import click

from diamant.broker.commands.terminal.files import one_line_errors
from diamant.storage import names
from diamant.storage.env.env import RealEnv
from diamant.storage.kraft.opening import fold_brokers


@click.command("fold-brokers")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def fold(directory: str, *, as_json: bool) -> None:
    """Put all partitions in DIRECTORY on the first broker, which leads them from then on.

    The data directory of `diamant start --brokers N` opens only with N brokers or more, and not with Apache Kafka. After this
    command, a single broker or Kafka can open it. Records are neither read nor changed. No broker may be using the directory.

    Exit codes: 0 done; 1 the directory is in use, damaged, or already that of a single broker; 2 usage.
    """
    env = RealEnv()
    with one_line_errors():
        lock = env.lock(f"{directory}/{names.LOCK}")
        try:
            count = fold_brokers(env, directory)
        finally:
            lock.release()
    text = f"{directory}: {count} brokers are now one"
    click.echo(json.dumps({"directory": directory, "brokers_before": count}) if as_json else text)
