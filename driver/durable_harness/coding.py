"""The tools of a coding agent: `read`, `write`, `edit`, `bash`. They reach the world through `api.env` alone.

What a person or a model did wrong (a missing file, a text that is not there, a failing command) is a result with `is_error`,
so that the model can go on; only what is nobody's answer (a stale epoch, a halt) leaves a tool as an exception.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from durable_harness.env import TIMEOUT_MAX, ExecError, FileError, Line, Stream
from durable_harness.tools import Diagnostic, Tool, ToolApi, ToolResult

OUTPUT_BYTES_MAX = 50 * 1024  # of one result: what a model can use, and the harness's own bound
OUTPUT_LINES_MAX = 2000

_PATH = {"type": "string", "minLength": 1, "description": "Absolute, or relative to the working directory."}


def _schema(required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _failed(message: str, code: str = "tool_error", *, output: str = "") -> ToolResult:
    return ToolResult(output, is_error=True, diagnostics=(Diagnostic("error", code, message),))


# read


async def _read(api: ToolApi, arguments: Any) -> ToolResult:
    first = arguments.get("offset", 1)
    limit = min(arguments.get("limit", OUTPUT_LINES_MAX), OUTPUT_LINES_MAX)
    try:
        # One line more than is shown tells whether the file goes on.
        lines = await api.env.read_lines(arguments["path"], first + limit)
    except FileError as error:
        return _failed(str(error))
    if first > max(len(lines), 1):
        return _failed(f"the file has {len(lines)} lines, so there is no line {first}")
    shown = _fitting(lines[first - 1 : first - 1 + limit])
    text = "".join(line.text + ("\n" if line.terminated else "") for line in shown)
    if not lines:
        return ToolResult("", diagnostics=(Diagnostic("info", "empty", "The file is empty."),))
    if not shown:
        note = f"Line {first} alone is longer than {OUTPUT_BYTES_MAX} bytes: use bash to look at a part of it."
        return ToolResult("", diagnostics=(Diagnostic("warning", "truncated", note),))
    last = first + len(shown) - 1
    if last < len(lines):
        note = f"Lines {first} to {last}; the file goes on: read again with offset {last + 1}."
        return ToolResult(text, diagnostics=(Diagnostic("info", "truncated", note),))
    return ToolResult(text)


def _fitting(lines: list[Line]) -> list[Line]:
    """The leading lines that fit into one result."""
    size = 0
    for at, line in enumerate(lines):
        size += len(line.text.encode("utf-8", "replace")) + 1
        if size > OUTPUT_BYTES_MAX:
            return lines[:at]
    return lines


read = Tool(
    name="read",
    description=(
        f"Read a text file. Gives at most {OUTPUT_LINES_MAX} lines or {OUTPUT_BYTES_MAX // 1024} KiB; "
        "for a longer file, say where to start with `offset` and how many lines with `limit`. "
        "The text is given exactly as it is, so it can be used in `edit`."
    ),
    parameters=_schema(
        ["path"],
        {
            "path": _PATH,
            "offset": {"type": "integer", "minimum": 1, "description": "The first line, counted from 1. Default 1."},
            "limit": {"type": "integer", "minimum": 1, "description": "How many lines at most."},
        },
    ),
    run=_read,
    replay="safe",
    effects="none",
)


# write


async def _write(api: ToolApi, arguments: Any) -> ToolResult:
    content: str = arguments["content"]
    try:
        await api.env.write(arguments["path"], content)
    except FileError as error:
        return _failed(str(error))
    return ToolResult(f"Wrote {len(content.encode('utf-8', 'surrogatepass'))} bytes to {arguments['path']}.")


write = Tool(
    name="write",
    description=(
        "Write a file: create it, with its folders, or replace all that it holds. "
        "To change a part of an existing file, use `edit`."
    ),
    parameters=_schema(
        ["path", "content"], {"path": _PATH, "content": {"type": "string", "description": "All of it."}}
    ),
    run=_write,
    effects="files",
)


# edit


async def _edit(api: ToolApi, arguments: Any) -> ToolResult:
    path, old, new = arguments["path"], arguments["old_text"], arguments["new_text"]
    try:
        # Bytes, not text: what is not UTF-8 must not be written back as something else.
        content = (await api.env.read_binary(path)).decode("utf-8")
        if (refusal := _refusal(content, old, new)) is not None:
            return _failed(refusal)
        await api.env.write(path, content.replace(old, new))
    except FileError as error:
        return _failed(str(error))
    except UnicodeDecodeError:
        return _failed(f"{path} is not UTF-8 text: change it with bash")
    line = content[: content.index(old)].count("\n") + 1
    return ToolResult(f"Replaced the text at line {line} of {path}.", details={"line": line})


def _refusal(content: str, old: str, new: str) -> str | None:
    """Why the replacement is not made, and what to do; None if it can be."""
    if not old:
        return "old_text is empty: give the text to replace, or use write to replace the whole file"
    if old == new:
        return "old_text and new_text are equal: nothing would change"
    count = content.count(old)
    if count > 1:
        at = ", ".join([str(line) for line in _places(content, old)[:5]] + ["..."] * (count > 5))
        return f"old_text is there {count} times (lines {at}): add lines around it until it is unique"
    if count == 1:
        return None
    if (near := _near(content, old)) is not None:
        return (
            f"old_text is not there, but line {near} differs from it in white space only: read it and copy it exactly"
        )
    return "old_text is not there: read the file and copy the text exactly, with its indentation"


def _places(content: str, old: str) -> list[int]:
    places, at = [], content.find(old)
    while at >= 0:
        places.append(content.count("\n", 0, at) + 1)
        at = content.find(old, at + len(old))
    return places


def _near(content: str, old: str) -> int | None:
    """The line at which `old` would start if white space did not count, else None."""
    wanted = [" ".join(line.split()) for line in old.strip().splitlines()]
    lines = [" ".join(line.split()) for line in content.splitlines()]
    for at in range(len(lines) - len(wanted) + 1):
        if wanted and lines[at : at + len(wanted)] == wanted:
            return at + 1
    return None


edit = Tool(
    name="edit",
    description=(
        "Replace a piece of text in a file by another. `old_text` must be in the file exactly once, "
        "character by character with its white space; add lines around it if it is there more than once."
    ),
    parameters=_schema(
        ["path", "old_text", "new_text"],
        {
            "path": _PATH,
            "old_text": {"type": "string", "description": "The text to replace, exactly as it is in the file."},
            "new_text": {"type": "string", "description": "What to put in its place."},
        },
    ),
    run=_edit,
    effects="files",
)


# bash


async def _bash(api: ToolApi, arguments: Any) -> ToolResult:
    tail = OutputTail(OUTPUT_BYTES_MAX, OUTPUT_LINES_MAX)

    def take(text: str, stream: Stream) -> None:
        tail.add(text)
        api.output(text)

    try:
        # Exactly one command and no file operation: after a crash its ledger record is the outcome of the whole call (rule 29).
        done = await api.env.exec(arguments["command"], timeout=arguments.get("timeout"), on_output=take)
    except ExecError as error:
        notes = (
            *tail.diagnostics(),
            Diagnostic("error", "timeout" if error.code == "timeout" else "tool_error", str(error)),
        )
        return ToolResult(tail.text(), is_error=True, diagnostics=notes)
    if done.exit_code == 0:
        return ToolResult(tail.text(), details={"exitCode": 0}, diagnostics=tail.diagnostics())
    note = Diagnostic("error", "exit_code", f"The command ended with exit code {done.exit_code}.")
    return ToolResult(
        tail.text(), is_error=True, details={"exitCode": done.exit_code}, diagnostics=(*tail.diagnostics(), note)
    )


class OutputTail:
    """The end of an output, in whole lines, in bounded memory."""

    def __init__(self, bytes_max: int, lines_max: int) -> None:
        self._bytes_max = bytes_max
        self._lines_max = lines_max
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._total = 0

    def add(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        self._chunks.append(data)
        self._held += len(data)
        self._total += len(data)
        while self._held - len(self._chunks[0]) >= self._bytes_max:
            self._held -= len(self._chunks.popleft())

    def text(self) -> str:
        return self._kept().decode("utf-8", "replace")

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        dropped = self._total - len(self._kept())
        if not dropped:
            return ()
        note = f"The first {dropped} bytes of the output were cut; to see all of it, write it to a file and read that."
        return (Diagnostic("warning", "truncated", note),)

    def _kept(self) -> bytes:
        data = b"".join(self._chunks)
        cut = len(data) > self._bytes_max or len(data) < self._total
        data = data[-self._bytes_max :]
        lines = data.splitlines(keepends=True)
        if cut and len(lines) > 1:
            lines = lines[1:]  # its start may be missing
        elif cut:
            return data.lstrip(bytes(range(0x80, 0xC0)))  # one over-long line: from a whole character on
        return b"".join(lines[-self._lines_max :])


bash = Tool(
    name="bash",
    description=(
        "Run a command with bash, in the working directory, without a terminal and without input. "
        f"Gives its output (the last {OUTPUT_LINES_MAX} lines or {OUTPUT_BYTES_MAX // 1024} KiB) and, if it is not 0, its "
        "exit code. Each command has its own shell: folders and variables set in one are not seen by the next."
    ),
    parameters=_schema(
        ["command"],
        {
            "command": {"type": "string", "minLength": 1, "description": "The command line."},
            "timeout": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": TIMEOUT_MAX,
                "description": "Seconds after which the command is killed. Default: none.",
            },
        },
    ),
    run=_bash,
    effects="command",
    command_of=lambda arguments: str(arguments["command"]),
    truncate="tail",
)


CODING_TOOLS: tuple[Tool, ...] = (read, write, edit, bash)
