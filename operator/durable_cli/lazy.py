"""A command group that imports a subcommand when it is run: each works with only its own extra installed."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from durable_base.errors import UsageError
from durable_base.stopping import hold_stop


@dataclass(frozen=True, slots=True)
class Command:
    """`target` is `module:attribute`; `extra` is what `pip install 'durable-sessions[...]'` must have brought. With
    `holds_stop` it is loaded while signals to stop are held back, and takes them itself (`durable_base.stopping`)."""

    target: str
    summary: str
    extra: str
    holds_stop: bool = False


class LazyGroup(click.Group):
    """Listing the commands imports none of them."""

    def __init__(self, *args: Any, commands_by_name: dict[str, Command], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._by_name = commands_by_name

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._by_name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = self._by_name.get(cmd_name)
        if command is None:
            close = difflib.get_close_matches(cmd_name, self._by_name, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(self._by_name)}"
            raise UsageError(f"{ctx.command_path}: no such command {cmd_name!r}; {remedy}")
        module, _, attribute = command.target.partition(":")
        if command.holds_stop:
            hold_stop()
        try:
            loaded: click.Command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"durable {cmd_name}: the module {error.name} is not installed. "
                f"Install it with: pip install 'durable-sessions[{command.extra}]'"
            ) from error
        return loaded

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: Sequence[tuple[str, str]] = [(name, command.summary) for name, command in self._by_name.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
