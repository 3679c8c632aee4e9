"""Options that more than one command has."""

from __future__ import annotations

from pathlib import Path

import click

from durable_local.layout import DEFAULT_STATE, check_readable


def _state(context: click.Context, parameter: click.Parameter, state: Path) -> Path:
    check_readable(state)
    return state


STATE = click.option(
    "--state",
    type=click.Path(path_type=Path, readable=False),  # judged by `check_readable`, in the words of all commands
    default=DEFAULT_STATE,
    callback=_state,
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
