"""The command line: the table of commands.

A mistake by the user results in one line on standard error and an exit code; a traceback means a bug in Diamant. A command is
imported only when it is run, so that `--help` and error messages appear without delay.
"""

from __future__ import annotations

import json

import click

from diamant.broker.commands.terminal.failures import wants_json
from diamant.broker.commands.terminal.lazy import LazyCommand, LazyGroup, Sections
from diamant.version import __version__

COMMANDS: dict[str, dict[str, LazyCommand]] = {
    "Run a broker": {
        "start": LazyCommand("diamant.broker.launch.start:start", "Start a broker and run it until Ctrl-C or SIGTERM."),
    },
    "Topics, records and groups of any Kafka cluster": {
        "topic": LazyCommand(
            "diamant.broker.command_groups:TOPIC_COMMANDS",
            "List, create, describe, alter and delete topics.",
        ),
        "produce": LazyCommand(
            "diamant.broker.commands.cluster.produce_lines:produce", "Write lines to a topic of any Kafka cluster."
        ),
        "consume": LazyCommand(
            "diamant.broker.commands.cluster.consume:consume", "Print the records of a topic of any Kafka cluster."
        ),
        "group": LazyCommand(
            "diamant.broker.command_groups:GROUP_COMMANDS",
            "List, describe, reset and delete consumer groups.",
        ),
        "audit": LazyCommand(
            "diamant.broker.commands.cluster.audit:audit",
            "Find what may keep values for too long, on any Kafka cluster.",
        ),
    },
    "Users and permissions of any Kafka cluster": {
        "user": LazyCommand(
            "diamant.broker.command_groups:USER_COMMANDS",
            "Add, list and remove SCRAM users of any Kafka cluster.",
        ),
        "acl": LazyCommand(
            "diamant.broker.command_groups:ACL_COMMANDS",
            "Add, list and remove ACLs of any Kafka cluster.",
        ),
    },
    "Look into a topic": {},
    "Compact": {},
    "Erase and certify": {
        "certify": LazyCommand(
            "diamant.broker.commands.clusters.certify:certify",
            "Search the disks of any Kafka's brokers for an erased key.",
        ),
        "person": LazyCommand(
            "diamant.broker.commands.person.person_commands:person",
            "Find and forget a person in all topics, with one certificate.",
        ),
        "restore": LazyCommand(
            "diamant.broker.commands.clusters.restore:restore",
            "Restore configurations that a killed erasure has left lowered.",
        ),
    },
    "For tests": {
        "exec": LazyCommand("diamant.broker.launch.exec:exec_", "Run a command, usually tests, with its own broker."),
        "broker": LazyCommand(
            "diamant.broker.commands.testing.broker:broker", "Take one of several brokers down, or move leaders."
        ),
        "clock": LazyCommand(
            "diamant.broker.commands.admin.clock:clock", "Show a broker's clock, or move a manual clock."
        ),
        "fault": LazyCommand(
            "diamant.broker.commands.admin.fault:fault", "Inject faults into a running broker, for tests."
        ),
        "snapshot": LazyCommand(
            "diamant.broker.commands.admin.snapshot:snapshot", "Create, list and delete snapshots of a broker."
        ),
    },
    "Read and clean files without a broker": {
        "log": LazyCommand("diamant.broker.command_groups:LOG_COMMANDS", "Read and clean log files without a broker."),
        "spark": LazyCommand("diamant.broker.command_groups:spark", "Read and clean logs of any size on Apache Spark."),
    },
}
"""The commands by purpose, except those of operations, which `all_commands` adds. Each is imported when it is run."""


def all_commands() -> Sections:
    """Return all commands by purpose."""
    from diamant.broker.dispatch.operation_table import OPERATIONS

    found = {heading: {**commands} for heading, commands in COMMANDS.items()}
    for row in OPERATIONS.values():
        if row.section:
            target = f"diamant.broker.commands.{row.command or 'terminal.operation_command'}"
            found[row.section][row.name.replace("_", "-")] = LazyCommand(target, row.summary, row.name)
    return found


SYNONYMS = {
    **dict.fromkeys(("config", "configs"), ("topic describe", "topic alter", "start --set")),
    **dict.fromkeys(("run", "serve", "server"), ("start", "exec")),
    **dict.fromkeys(("health", "info", "top"), ("status",)),
    **dict.fromkeys(("test", "tests"), ("exec",)),
    **dict.fromkeys(("partition", "partitions"), ("topic describe", "topic alter")),
    **dict.fromkeys(("consumer", "read", "tail", "cat", "get"), ("consume", "latest")),
    **dict.fromkeys(("producer", "send", "write", "put"), ("produce",)),
    **dict.fromkeys(
        ("consumer-group", "consumer-groups", "lag", "offset", "offsets"), ("group describe", "group reset")
    ),
    **dict.fromkeys(("password", "scram", "login"), ("user",)),
    **dict.fromkeys(("permission", "permissions", "grant"), ("acl",)),
    **dict.fromkeys(("search", "grep"), ("find",)),
    **dict.fromkeys(("why", "held"), ("explain",)),
    **dict.fromkeys(("records", "size"), ("count",)),
    "key": ("find", "latest"),
    "segments": ("count --segments", "log stats"),
    **dict.fromkeys(("forget", "delete-records", "purge"), ("person forget", "erase", "redact")),
    **dict.fromkeys(("people", "subject", "gdpr", "dsr"), ("person",)),
    **dict.fromkeys(("certificate", "prove"), ("erase", "certificates", "verify")),
    **dict.fromkeys(("brokers", "failover", "leader"), ("broker",)),
    **dict.fromkeys(("time", "advance"), ("clock advance",)),
    **dict.fromkeys(("inject", "fail", "chaos"), ("fault add",)),
    **dict.fromkeys(("save", "backup", "fork"), ("snapshot create",)),
}
"""Commands to suggest for words that users of other programs may type and that do not resemble any command or subcommand."""


def _show_version(ctx: click.Context, parameter: click.Parameter, is_asked: bool) -> None:
    if not is_asked or ctx.resilient_parsing:
        return
    from diamant.broker.commands.terminal.build_facts import build_facts
    from diamant.kernels import ARE_COMPILED, WITHOUT_KERNELS

    text = f"diamant, version {__version__}"
    click.echo(json.dumps(build_facts()) if wants_json() else text if ARE_COMPILED else f"{text}\n{WITHOUT_KERNELS}")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    sections=all_commands,
    first=COMMANDS,
    synonyms=SYNONYMS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit; --json adds the kernels, the engines and the libraries.",
)
@click.option("--json", is_flag=True, is_eager=True, expose_value=False, hidden=True)
def main() -> None:
    """Diamant, a Kafka-compatible broker."""


if __name__ == "__main__":
    main()
