"""What every ExecutionEnv does to its arguments before it touches anything: paths as callers write them,
commands, data, whole numbers."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from urllib.parse import unquote, urlsplit

from durable_harness.env import ExecError, FileError


def absolute(path: str, cwd: str, home: str) -> str:
    """Absolute and without `.` and `..`, symlinks kept. Raise FileError: no file can have this name."""
    path = of_url(path)
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    target = joined(cwd, path)
    check_name(target)
    return target


def joined(*parts: str) -> str:
    path = posixpath.normpath(posixpath.join(*parts)) if parts else "."
    return path[1:] if path.startswith("//") else path  # POSIX lets two leading slashes mean something else


def needs_home(path: str) -> bool:
    path = of_url(path)
    return path == "~" or path.startswith("~/")


def of_url(path: str) -> str:
    """The path of a file: URL of this machine; a malformed one is a plain path."""
    if not path.startswith("file:"):
        return path
    try:
        url = urlsplit(path)
        found = unquote(url.path, errors="strict")
    except ValueError:
        return path
    hidden = "%2f" in url.path.lower() or "\0" in found  # a separator or an end that no name can hold
    if url.netloc not in ("", "localhost") or not found.startswith("/") or url.query or url.fragment or hidden:
        return path
    return found


def check_name(path: str) -> None:
    """Raise FileError for what no name can hold. A model can write it into an argument."""
    if "\0" in path:
        raise FileError("invalid", path.replace("\0", "\\0"), "a path holds no NUL")


def check_text(path: str) -> None:
    """Raise FileError for what a message can't carry: half of a surrogate pair."""
    if not is_text(path):
        raise FileError("invalid", path.encode("utf-8", "backslashreplace").decode(), "a path is text, in UTF-8")


def is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check_launch(words: Sequence[str], variables: Mapping[str, str]) -> None:
    """Raise ExecError for what no program can be started with."""
    if not words:
        raise ExecError("spawn_error", "the command is empty")
    if any("\0" in word for word in words):
        raise ExecError("spawn_error", "a command holds no NUL")
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise ExecError("spawn_error", "a variable has a name without '=', and neither it nor its value holds NUL")


def check_affix(path: str, *affixes: str) -> None:
    """Raise FileError: a prefix or suffix of a temporary name that would lead elsewhere."""
    for affix in affixes:
        check_name(affix)
        if "/" in affix:
            raise FileError("invalid", path, "a prefix or suffix holds no slash")


def check_whole(target: str, name: str, value: int, *, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise FileError("invalid", target, f"{name} is a whole number from {least} below 2**63, not {value!r}")


def to_bytes(data: str | bytes) -> bytes:
    return data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
