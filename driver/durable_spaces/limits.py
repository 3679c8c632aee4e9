"""Modes and their limits: what a person may ask for, and the refusal of what this version does not do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from durable_base.errors import HaltError, UsageError

MODES = ("auto", "transactional", "checkpoint")
_KEYS = ("maxFiles", "maxBytes", "exclude")


@dataclass(frozen=True, slots=True)
class Limits:
    """What an image may hold. A workspace beyond them is refused before a call; a call that passes them is the last one."""

    max_files: int = 1000  # entries; a commit reads the whole table, so it stays small
    max_bytes: int = 16 * 1024 * 1024  # of all files together; the log keeps each version of each file
    exclude: tuple[bytes, ...] = ()  # workspace-relative; neither recorded nor undone


def check_mode(mode: str) -> None:
    """`auto` is transactional while the workspace is within the limits. Raise UsageError, or HaltError for a known other mode."""
    if mode not in MODES:
        raise UsageError(f"mode {mode!r} is none of {', '.join(MODES)}: set `mode: auto`")
    if mode == "checkpoint":
        raise mode_unsupported("checkpoint was asked for")


def mode_unsupported(why: str) -> HaltError:
    return HaltError(
        "ModeUnsupported",
        f"mode checkpoint is not served by this version ({why}); use `mode: transactional` or `mode: auto` with a workspace"
        " within `transactional.maxFiles` and `transactional.maxBytes`, or leave folders out by `transactional.exclude`",
        permanent=True,
    )


def too_large(files: str, size: str, limits: Limits) -> str:
    """`files` and `size` (bytes): how far the scan had counted when it stopped, so that there may be more. Empty: unknown."""
    found = f"{files} files and {size} bytes were counted when the scan stopped" if files and size else "it has more"
    return (
        f"the workspace is beyond the limits of {limits.max_files} files and {limits.max_bytes} bytes: {found}; make it smaller,"
        " or start a new session with a higher `transactional.maxFiles` or `transactional.maxBytes`, or with the folders that"
        " need no undoing under `transactional.exclude`"
    )


def not_recordable(found: str) -> str:
    """`found` names them."""
    return (
        f"the workspace holds what the log can't hold ({found}); remove or rename it, or start a new session with its folder"
        " under `transactional.exclude`"
    )


KEEPS_CHANGING = (
    "files of the workspace keep changing while they are read: a process of an earlier command still writes there; end it, or"
    " start a new session with the folder that it writes to under `transactional.exclude`"
)


def parse_limits(value: Mapping[str, Any] | None) -> Limits:
    """`{maxFiles, maxBytes, exclude}`, each optional. Raise UsageError naming the key."""
    value = value or {}
    for key in value:
        if key not in _KEYS:
            raise UsageError(f"transactional.{key}: unknown; it knows {', '.join(_KEYS)}")
    defaults = Limits()
    exclude = value.get("exclude", ())
    if not isinstance(exclude, list | tuple) or not all(isinstance(path, str) for path in exclude):
        raise UsageError("transactional.exclude is a list of paths, like `[node_modules, .venv]`")
    return Limits(
        _positive(value, "maxFiles", defaults.max_files),
        _positive(value, "maxBytes", defaults.max_bytes),
        tuple(_relative(path) for path in exclude),
    )


def _positive(value: Mapping[str, Any], key: str, default: int) -> int:
    given = value.get(key, default)
    if isinstance(given, bool) or not isinstance(given, int) or given <= 0:
        raise UsageError(f"transactional.{key} is a whole number above 0, not {given!r}")
    return given


def _relative(path: str) -> bytes:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or not parts:
        raise UsageError(
            f"transactional.exclude: {path!r} is no path inside the workspace; give it relative, like `node_modules`"
        )
    return "/".join(parts).encode("utf-8", "surrogateescape")
