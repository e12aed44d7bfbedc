"""Options shared by the commands that run on Spark. Does not import Spark."""

from __future__ import annotations

from collections.abc import Sequence

import click

master_option = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="The Spark master: local[N], spark://HOST:PORT, yarn or k8s://HOST:PORT.",
)
conf_option = click.option(
    "--conf",
    "spark_settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A Spark configuration property; may be repeated.",
)
staging_option = click.option(
    "--staging", default="", metavar="URI", help="Where executors write their output. Default: beside the segments."
)


def parse_conf(spark_settings: Sequence[str]) -> dict[str, str]:
    """Parse --conf options. An option without a name or an equals sign is a usage error."""
    conf = {}
    for setting in spark_settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{setting!r}: expected NAME=VALUE", param_hint="--conf")
        conf[name.strip()] = value
    return conf
