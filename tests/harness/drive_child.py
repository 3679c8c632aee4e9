"""Drives, each in a process of its own, forked from this one (which has imported everything once, and runs nothing itself).

A line on stdin asks for one: {"scenario", "folder", "attempt", "kill_at", "act"}; a line on stdout tells how it ended: {"code",
"answer", "error"}, a negative code being the signal that killed it. The world outside the log is two files in the folder:
`effects` (a word per effect) and `requests` (a line per model request).
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from durable_base import crash
from durable_harness import Agent, Harness, RetryPolicy, Settings, ToolApi, sqlite, tool
from durable_harness.models import Final, Message, ModelError, ModelRequest, Partial, ToolCallPart, Usage
from durable_harness.records import Outcome, Running, Task, TaskState, Terminal
from durable_harness.session import Tx
from durable_harness.tasks import TaskDefinition, TaskRuntime

SCENARIO, FOLDER, ACT = "", Path(), ""  # of this drive; set in its process
ATTEMPT: int | None = None


def append(name: str, line: str) -> None:
    with open(FOLDER / name, "a") as file:
        file.write(line + "\n")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# tools: each leaves its word in `effects`; ACT=die:<word> kills the process behind the first such effect


@tool(replay="safe")
async def safe(word: str, api: ToolApi) -> str:
    """Leave a word; may be done twice."""
    append("effects", f"{word}{'-again' if api.call.recovered else ''}")
    if f"die:{word}" == ACT:
        die()
    return f"left {word}"


@tool
async def unsafe(word: str, api: ToolApi) -> str:
    """Leave a word; must not be done twice."""
    append("effects", word)
    api.output(f"leaving {word}\n")
    if f"die:{word}" == ACT:
        await shown(api, f"leaving {word}")
        die()
    return f"left {word}"


async def shown(api: ToolApi, text: str) -> None:
    """Until the live output is in the log."""
    for _ in range(2000):
        if await api.commit(lambda tx: any(text in slot["output"] for slot in slots(tx))):
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


def slots(tx: Tx) -> list[dict[str, str]]:
    from durable_harness.builtin import LIVE

    return list(tx.peek(LIVE)["tools"])


# models: the step is the number of assistant answers in the request


ROUNDS = {
    "story": [[("safe", "one"), ("unsafe", "two")], [("safe", "three")]],
    "unsafe": [[("unsafe", "u")]],
    "safe": [[("safe", "s")]],
    "parallel": [[("safe", "a"), ("unsafe", "b"), ("safe", "c")]],
    "retry": [],
    "streaming": [],
    "answer": [],
}


class Model:
    async def stream(self, request: ModelRequest) -> AsyncIterator[Partial | Final]:
        append(
            "requests",
            json.dumps({"messages": list(request.messages), "model": request.model, "session": request.session_id}),
        )
        step = sum(message["role"] == "assistant" for message in request.messages)
        if SCENARIO == "retry" and len((FOLDER / "requests").read_text().splitlines()) == 1:
            raise ModelError("busy", retryable=True)
        rounds = ROUNDS[SCENARIO]
        if step < len(rounds):
            calls = tuple(ToolCallPart("c", name, {"word": word}) for name, word in rounds[step])
            yield Final(Message("working", tool_calls=calls), "tool_use", Usage(10, 1))
            return
        yield Partial(Message("It is"))
        if SCENARIO in ("story", "streaming"):
            await asyncio.sleep(0.05 if ACT != "hang" else 3600)
        yield Final(Message("It is done."), "stop", Usage(10, 1))


# a task of one's own, in three phases


async def first(task: Task, runtime: TaskRuntime) -> None:
    append("effects", "first")
    await runtime.commit(lambda tx, task: Running(checkpoint={"phase": "second"}))


async def second(task: Task, runtime: TaskRuntime) -> None:
    append("effects", f"second-{task.restarts}")
    if ACT == "die:second":
        die()
    await runtime.commit(lambda tx, task: Running(checkpoint={"phase": "third"}))


async def third(task: Task, runtime: TaskRuntime) -> None:
    append("effects", "third")
    if await runtime.memo("paid") is None:
        append("effects", "paid")
        await runtime.memo("paid", True)
    if ACT == "die:third":
        die()
    await runtime.commit(lambda tx, task: done("steps"))


async def stop(task: Task, runtime: TaskRuntime) -> None:
    await runtime.commit(lambda tx, task: Terminal(outcome=Outcome(status="aborted")))


def done(result: str) -> TaskState:
    return Terminal(outcome=Outcome(status="completed", result=result))


STEPS = TaskDefinition("steps", {"first": first, "second": second, "third": third}, stop)


async def main() -> str:
    settings = Settings(attempt=ATTEMPT, retry=RetryPolicy(base_seconds=0.1), partial_interval_ms=20)
    agent = Agent(model="demo/one", instructions="Work.", tools=["safe", "unsafe"])
    opening = Harness.open(
        sqlite(FOLDER / "log.db"), models={"demo": Model()}, tools=[safe, unsafe], tasks=[STEPS], settings=settings
    )
    async with opening as harness:
        root = await harness.root(agent)
        if SCENARIO == "steps":
            live = harness.session.live_tasks()
            ended = await harness.session.tasks(kind="steps")
            task = (live or ended or [None])[0] or await harness.session.commit(
                lambda tx: tx.create_task("steps", {"phase": "first"})
            )
            if ACT == "retry":
                await harness.retry_task(task.id)
            harness.resume()
            if harness.blocked():
                return f"blocked {harness.blocked()[task.id]}"
            return str((await harness.wait_for_task(task.id)).result)
        submission = await root.submit("Do it.", request_id="r1")
        return (await submission.wait()).text


def drive(order: dict[str, Any]) -> None:
    """In the forked process: never returns."""
    global SCENARIO, FOLDER, ATTEMPT, ACT
    SCENARIO, FOLDER, ATTEMPT, ACT = order["scenario"], Path(order["folder"]), order["attempt"], order["act"]
    code = 1
    try:
        crash.arm(order["kill_at"])
        (FOLDER / "answer").write_text(asyncio.run(main()))
        code = 0
    except BaseException:
        (FOLDER / "error").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def read_and_remove(file: Path) -> str | None:
    if not file.exists():
        return None
    text = file.read_text()
    file.unlink()
    return text


if __name__ == "__main__":
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            drive(order)
        _, status = os.waitpid(pid, 0)
        folder = Path(order["folder"])
        ended = {
            "code": os.waitstatus_to_exitcode(status),
            "answer": read_and_remove(folder / "answer"),
            "error": read_and_remove(folder / "error"),
        }
        sys.stdout.write(json.dumps(ended) + "\n")
        sys.stdout.flush()
