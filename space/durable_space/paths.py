"""Paths as callers write them: absolute, relative to the workspace, `~` and `~/x`, or a file: URL."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from durable_space.refusal import Code, Reason, Refused, invalid

PATH_BYTES_MAX = 4096  # the kernel's


def absolute(text: str, workspace: Path) -> str:
    """Absolute and without `.` and `..`, symlinks kept. A malformed URL is a plain path. Raise Refused: empty, or NUL."""
    if len(text.encode(errors="surrogateescape")) > PATH_BYTES_MAX:
        raise invalid(f"a path has at most {PATH_BYTES_MAX} bytes")
    if not text or "\0" in text:
        raise invalid("a path must not be empty or hold NUL", path=text.replace("\0", "\\0"))
    if text.startswith("file:"):
        text = _of_url(text) or text
    if text == "~" or text.startswith("~/"):
        text = os.path.expanduser(text)
    return os.path.normpath(os.path.join(workspace, text))


def not_the_root(path: str, workspace: Path) -> str:
    """The absolute path as it is. Raise Refused: the workspace itself, or a folder that it lies in, would go."""
    folder, name = os.path.split(path)
    if workspace.is_relative_to(os.path.join(os.path.realpath(folder), name)):
        raise Refused(
            Code.INVALID_ARGUMENT,
            Reason.UNSPECIFIED,
            f"{path}: is the workspace, or holds it, and must stay: name what is in it",
            condition="WorkspaceRoot",
            metadata={"path": path},
        )
    return path


def _of_url(text: str) -> str:
    """Empty if it is no file: URL of this machine."""
    try:
        url = urlsplit(text)
    except ValueError:
        return ""
    if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
        return ""
    path = unquote(url.path)
    return "" if "\0" in path else path


def shown(name: str) -> str:
    """A name that is no UTF-8 is shown with escapes: a message's text can't hold it (Scan keeps it exactly)."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
