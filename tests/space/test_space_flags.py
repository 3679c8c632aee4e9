"""Flags and their defaults: what the page says is what the program has, and what can't work is refused by name."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from durable_protocol.cua.env.v1 import filesystem_pb2 as fs
from durable_space.cli import space
from durable_space.config import FLAGS, Limits
from durable_space.testing import LocalDaemon, refusal, until

PAGE = Path(__file__).parents[2] / "docs" / "space.md"
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
WORDS = {"required": (None, ()), "none": (None,), "off": (False,), "empty": ("",), "auto": ("auto",)}
DEFAULTS = {f"--{name.replace('_', '-')}": value for name, value in space.make_context("space", []).params.items()}


def rows() -> dict[str, str]:
    """Each flag of the page's table, and the default that is beside it."""
    section = PAGE.read_text().split("\n## Flags\n")[1].split("\n## ")[0]
    found: dict[str, str] = {}
    for row in re.findall(r"^\| (`--.*?) \| (.*?) \|", section, re.MULTILINE):
        flags = re.findall(r"`(--[a-z0-9-]+)", row[0])
        defaults = row[1].split(", ") if ", " in row[1] else [row[1]] * len(flags)
        found.update(zip(flags, defaults, strict=True))
    return found


def test_the_page_lists_every_flag_that_help_lists() -> None:
    shown = CliRunner().invoke(space, ["--help"]).output
    helped = set(re.findall(r"^  (--[a-z0-9-]+)", shown, re.MULTILINE)) - {"--help"}
    assert helped == set(DEFAULTS)
    assert set(rows()) == helped


@pytest.mark.parametrize("flag", DEFAULTS)
def test_the_page_says_the_default(flag: str) -> None:
    text, default = rows()[flag].strip("`"), DEFAULTS[flag]
    if number := re.fullmatch(r"(\d+) ?(KiB|MiB|)", text):
        assert int(number[1]) * UNITS[number[2]] == default
    else:
        assert default in WORDS[text]


def test_every_limit_has_a_flag_with_the_same_default() -> None:
    assert set(FLAGS) == {field.name for field in fields(Limits)}
    assert {name: DEFAULTS[flag] for name, flag in FLAGS.items()} == {
        field.name: field.default for field in fields(Limits)
    }


def refused(tmp_path: Path, *flags: str) -> str:
    """The last line of what is told; nothing was made."""
    (tmp_path / "w").mkdir(exist_ok=True)
    paths = ["--data", str(tmp_path / "d"), "--workspace", str(tmp_path / "w"), "--listen", f"unix:{tmp_path}/s"]
    result = CliRunner().invoke(space, [*paths, *flags])
    assert result.exit_code == 2, result.output
    assert not (tmp_path / "d").exists()
    return result.output.splitlines()[-1]


NO_LIMITS = [
    (flag, value)
    for flag in FLAGS.values()
    for value in ("-1", "0", "nonsense", "nan")
    if value != "0" or flag not in ("--free-bytes-min", "--stop-seconds", "--term-seconds")
]


@pytest.mark.parametrize(("flag", "value"), NO_LIMITS)
def test_a_limit_that_is_none_is_refused_by_its_flag(tmp_path: Path, flag: str, value: str) -> None:
    assert flag in refused(tmp_path, flag, value)


def test_messages_must_hold_the_largest_answer(tmp_path: Path) -> None:
    assert "at least 2097152" in refused(tmp_path, "--message-bytes-max", str((2 << 20) - 1))


def test_uploads_are_as_many_and_as_long_as_the_flags_say(make_daemon: Callable[..., LocalDaemon]) -> None:
    client = make_daemon("--uploads-max", "2", "--upload-seconds-max", "60", "--kill-mechanism", "subreaper").start()

    def begin(name: str) -> fs.BeginUploadResponse:
        request = fs.BeginUploadRequest(upload_id=name, header=fs.WriteFileHeader(path=name))
        request.ttl.seconds = 3600
        response: fs.BeginUploadResponse = client.call(client.filesystem.BeginUpload, request)
        return response

    assert begin("a").expires_at.ToNanoseconds() < time.time_ns() + 61 * 10**9
    begin("b")
    told = refusal(lambda: begin("c"))
    assert (told.condition, "--uploads-max" in told.message) == ("LimitExceeded", True)


def test_a_command_at_its_timeout_has_the_time_that_the_flag_says(make_daemon: Callable[..., LocalDaemon]) -> None:
    client = make_daemon("--term-seconds", "0", "--kill-mechanism", "subreaper").start()
    began = time.monotonic()
    end = client.run("deaf", "trap '' TERM; sleep 60", timeout=0.3).end
    assert end.timed_out
    assert time.monotonic() - began < 4.0


@pytest.mark.parametrize(("seconds", "written"), [("0", False), ("5", True)])
def test_commands_have_the_time_that_the_flag_says(
    make_daemon: Callable[..., LocalDaemon], tmp_path: Path, seconds: str, written: bool
) -> None:
    """From the SIGTERM at the daemon's end; this one needs half a second."""
    daemon = make_daemon("--stop-commands", "--stop-seconds", seconds, "--kill-mechanism", "subreaper")
    last = tmp_path / "last"
    script = f"trap 'sleep 0.5; echo > {last}; exit' TERM; echo on; while :; do sleep 0.05; done"
    events = daemon.start().start("job", script)
    until(lambda: next(events).WhichOneof("event") == "data")
    daemon.terminate()
    assert last.exists() == written
