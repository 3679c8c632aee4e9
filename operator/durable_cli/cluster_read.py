"""What `kubectl durable` reads: objects as JSON, and what drivers wrote, by way of the kubectl on the PATH."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from durable_base.errors import UsageError
from durable_local.events import Event, from_line, now_event

KIND = "durablesessions.durablesessions.dev"
SPACE_KIND = "durablespaces.durablesessions.dev"
_HEARTBEAT = "CUA-HEARTBEAT "
_EPOCH, _SESSION = "durablesessions.dev/epoch", "durablesessions.dev/session"
Options = tuple[str, ...]  # of kubectl, in front of its verb
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Drive:
    """One driver's pod that is still there. `code`: None until its container has ended, `running` while it runs."""

    pod: str
    epoch: int
    node: str
    started: bool
    running: bool
    code: int | None
    ended_ms: int


def kubectl(*arguments: str) -> int:
    """kubectl's own output and exit code."""
    return subprocess.run([binary(), *arguments], check=False).returncode


def binary() -> str:
    found = shutil.which("kubectl")
    if found is None:
        raise UsageError("kubectl is not on the PATH: install it, or add its folder to PATH")
    return found


def read(options: Options, *words: str) -> Json:
    """`kubectl get WORDS`, parsed. Raise UsageError with kubectl's words where it refuses."""
    done = subprocess.run(
        [binary(), *options, "get", *words, "-o", "json"], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise UsageError(done.stderr.strip())
    found: Json = json.loads(done.stdout)
    return found


def session(options: Options, name: str) -> Json:
    return read(options, KIND, name)


def drives(options: Options, name: str) -> list[Drive]:
    """Of a session, oldest first: the running one, and as many that ended as `driver.historyLimit` keeps."""
    pods = read(options, "pods", "-l", f"{_SESSION}={name}").get("items", [])
    return sorted(map(_drive, pods), key=lambda drive: drive.epoch)


def condition(found: Json, type: str) -> Json:
    """{} if the object has none of that type (yet)."""
    entries = found.get("status", {}).get("conditions", ())
    return next((entry for entry in entries if entry["type"] == type), {})


def written(options: Options, drive: Drive, *, follow: bool = False) -> Iterator[str]:
    """What a driver wrote, line by line. Ends with kubectl's refusal, as a line, where there is nothing to read."""
    command = [binary(), *options, "logs", drive.pod, "-c", "driver", *(["-f"] if follow else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield line.rstrip("\n")


def told(name: str, drive: Drive, lines: Iterable[str]) -> Iterator[Event | str]:
    """A driver's events, its other lines as they are, and its end; without the heartbeats."""
    for line in lines:
        if line.startswith(_HEARTBEAT):
            continue
        event = _event(line)
        if event is not None or line.strip():
            yield event if event is not None else line
    if drive.code is not None:
        signal = drive.code - 128 if 128 < drive.code < 160 else None
        reason = "Completed" if drive.code == 0 else "Killed" if signal else f"exit code {drive.code}"
        gone = now_event(name, drive.epoch, "driver.gone", reason=reason, code=drive.code, signal=signal)
        yield Event(drive.ended_ms, name, drive.epoch, gone.name, gone.fields)


def _event(line: str) -> Event | None:
    if not line.startswith("{"):
        return None
    try:
        raw = json.loads(line)
    except ValueError:
        return None
    return from_line(raw)


def _drive(pod: Json) -> Drive:
    statuses = pod.get("status", {}).get("containerStatuses", ())
    state: Json = next((entry["state"] for entry in statuses if entry["name"] == "driver"), {})
    ended = state.get("terminated") or {}
    finished = ended.get("finishedAt")
    return Drive(
        pod=pod["metadata"]["name"],
        epoch=int(pod["metadata"]["labels"].get(_EPOCH, 0)),
        node=pod["spec"].get("nodeName", ""),
        started="running" in state or bool(ended),
        running="running" in state,
        code=ended.get("exitCode"),
        ended_ms=int(datetime.fromisoformat(finished).timestamp() * 1000) if finished else 0,
    )
