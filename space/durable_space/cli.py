"""`durable space`: the daemon, its keeper (`supervise`) and the filler of an empty workspace (`seed`).

Imports click alone; what does the work is imported when a command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from durable_space.config import Config

_OPTIONS = (
    click.option("--data", type=click.Path(path_type=Path), help="Folder of ledger and output; one daemon each."),
    click.option("--workspace", type=click.Path(path_type=Path), help="The folder that sessions work in."),
    click.option("--listen", multiple=True, metavar="ADDR", help="unix:/path or HOST:PORT (port 0: any); repeatable."),
    click.option("--name", default="", help="The Space's name, as GetInfo tells it."),
    click.option("--generation", type=int, default=0, show_default=True, help="Of the Space; a data folder has one."),
    click.option("--epoch-floor", type=int, default=0, show_default=True, help="Refuse epochs below this one."),
    click.option("--token-file", type=click.Path(path_type=Path), help="File with the bearer token that calls must carry."),
    click.option("--tls-cert", type=click.Path(path_type=Path), help="PEM certificate chain."),
    click.option("--tls-key", type=click.Path(path_type=Path), help="PEM private key."),
    click.option("--insecure", is_flag=True, help="Allow an address reachable from outside without token or TLS."),
    click.option("--http", metavar="ADDR", help="Where /livez, /readyz and /metrics are served."),
    click.option("--kill-mechanism", default="auto", show_default=True, help="auto, cgroup2, pidns or subreaper."),
    click.option("--stop-commands", is_flag=True, help="End commands at SIGTERM; without it they run on."),
    click.option("--open-commands-max", type=int, default=256, show_default=True, help="Commands open at once."),
    click.option("--keep-output-bytes", type=int, default=64 << 20, show_default=True, help="Newest output kept per command."),
    click.option("--rows-max", type=int, default=100_000, show_default=True, help="Ledger rows, ended ones included."),
    click.option("--free-bytes-min", type=int, default=32 << 20, show_default=True, help="Free disk below which nothing starts."),
    click.option("--message-bytes-max", type=int, default=16 << 20, show_default=True, help="One message on the wire."),
    click.option("--streams-max", type=int, default=512, show_default=True, help="Concurrent calls per connection."),
    click.option("--uploads-max", type=int, default=64, show_default=True, help="Uploads in parts open at once."),
    click.option("--upload-seconds-max", type=float, default=86_400.0, show_default=True, help="Longest life of an idle upload."),
    click.option("--proof-seconds-max", type=float, default=20.0, show_default=True, help="From kill to ProofFailed."),
    click.option("--term-seconds", type=float, default=5.0, show_default=True, help="At a timeout: from SIGTERM to SIGKILL."),
    click.option("--stop-seconds", type=float, default=2.0, show_default=True, help="Commands' time, with --stop-commands."),
)  # fmt: skip


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group("space", invoke_without_command=True)
@_options
@click.pass_context
def space(context: click.Context, /, **options: Any) -> None:
    """Serve files and commands of a sandbox, behind epochs and an exec ledger."""
    if context.invoked_subcommand is not None:
        return
    from durable_base.errors import UsageError

    try:
        config = _config(options)
        from durable_space.quiet import grpc_silenced

        with grpc_silenced():
            from durable_space.server import serve

        import uvloop  # by measurement: a durable `true` takes 5 % less than on the standard library's loop

        uvloop.run(serve(config))
    except UsageError as error:
        _fail(error)


@space.command()
@_options
def supervise(**options: Any) -> None:
    """Keep a daemon running as process 1 of a container: reap orphans, start it anew when it dies."""
    from durable_base.errors import UsageError

    try:
        from durable_space.config import check
        from durable_space.supervise import supervise as run

        config = _config(options)
        check(config)
        sys.exit(run(arguments(options)))
    except UsageError as error:
        _fail(error)


@space.command()
@click.option("--from", "source", type=click.Path(path_type=Path), required=True, help="Folder to copy from.")
@click.option("--workspace", type=click.Path(path_type=Path), required=True, help="Folder to fill, if it is empty.")
@click.option("--data", type=click.Path(path_type=Path), help="Remember here that it was filled once.")
def seed(source: Path, workspace: Path, data: Path | None) -> None:
    """Fill an empty workspace, once."""
    from durable_base.errors import UsageError
    from durable_space.seed import fill

    try:
        count = fill(source, workspace, data)
    except UsageError as error:
        _fail(error)
    else:
        click.echo("nothing to do: it was filled before, or is not empty" if count is None else f"{count} files copied")


def arguments(options: dict[str, Any]) -> list[str]:
    """The options as a command line."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words += [flag] if value else []
        elif isinstance(value, tuple):
            words += [word for one in value for word in (flag, str(one))]
        elif value is not None:
            words += [flag, str(value)]
    return words


def _config(options: dict[str, Any]) -> Config:
    from durable_base.errors import UsageError
    from durable_space.config import FLAGS, Config, Limits, parse_address

    for flag in ("data", "workspace"):
        if options[flag] is None:
            raise UsageError(f"--{flag}: must be given")
    return Config(
        data=options["data"].absolute(),
        workspace=options["workspace"].absolute(),
        listen=tuple(parse_address(text) for text in options["listen"]),
        name=options["name"],
        generation=options["generation"],
        epoch_floor=options["epoch_floor"],
        token_file=options["token_file"],
        tls_cert=options["tls_cert"],
        tls_key=options["tls_key"],
        insecure=options["insecure"],
        http=parse_address(options["http"], "--http") if options["http"] else None,
        kill_mechanism=options["kill_mechanism"],
        stop_commands=options["stop_commands"],
        limits=Limits(**{name: options[flag[2:].replace("-", "_")] for name, flag in FLAGS.items()}),
    )


def _fail(error: Exception) -> None:
    click.echo(f"durable space: {error}", err=True)
    sys.exit(2)
