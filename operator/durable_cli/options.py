"""Options that more than one command has."""

from __future__ import annotations

from pathlib import Path

import click

from durable_local.layout import DEFAULT_STATE

STATE = click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    help="Folder that holds the sessions.",
)
OUTPUT = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    show_default=True,
    help="Output format.",
)
