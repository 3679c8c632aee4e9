"""A driver that does what its arguments say, in place of a real one. Not a test.

Each argument is `eN=words`, what to do from epoch N on: `step` (tell of a step), `settle` (settled report, exit 0), `fail:REASON`
(78), `fence:FLOOR` (75), `exit:N`, `kill` (SIGKILL to itself), `silent` (no more beats), `wait` (beat until SIGTERM, exit 143),
`until:FILE` (the same, or until the file is there). Every epoch that was driven is a line of `driven` in the state folder.
"""

import json
import os
import signal
import sys
import time

EPOCH = int(os.environ["CUA_SESSION_EPOCH"])
HEAD = {"session": os.environ["CUA_SESSION"], "epoch": EPOCH}


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def tell(event: str, **fields: object) -> None:
    write(json.dumps({"time": int(time.time() * 1000), **HEAD, "event": event, **fields}))


def beat() -> None:
    write(f"CUA-HEARTBEAT {EPOCH} {int(time.time() * 1000)}")


def report(outcome: str, reason: str, floor: int = 0, answer: str = "") -> None:
    line = {**HEAD, "outcome": outcome, "reason": reason, "message": "told by a double", "entries": 1}
    line["floor"] = {"epoch": floor or EPOCH, "incarnation": "0" * 32}
    with open(os.environ["DURABLE_REPORT"], "w") as file:
        file.write(json.dumps(line) + "\n" + json.dumps(answer) + "\n")


def rest(until: str = "") -> None:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    while not stopped and not (until and os.path.exists(until)):
        beat()
        time.sleep(0.05)
    if stopped:
        report("stopped", "Stopped")
        sys.exit(143)


def behave(word: str) -> None:
    name, _, value = word.partition(":")
    if name == "step":
        tell("step.started", step=1, tool="bash", call="1")
        tell("step.finished", step=1, tool="bash", call="1", seconds=0.01, isError=False)
    elif name == "settle":
        report("settled", "Completed", answer="42")
        sys.exit(0)
    elif name == "fence":
        report("fenced", "Fenced", floor=int(value))
        sys.exit(75)
    elif name == "fail":
        report("failed", value)
        sys.exit(78)
    elif name == "exit":
        sys.exit(int(value))
    elif name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "silent":
        time.sleep(3600)
    elif name == "wait":
        rest()
    elif name == "until":
        rest(value)


if __name__ == "__main__":
    with open(os.path.join(os.environ["CUA_SESSION_STATE_DIR"], "driven"), "a") as driven:
        driven.write(f"{EPOCH}\n")
    tell("driver.started")
    beat()
    for words in reversed(sys.argv[1:]):
        since, _, rule = words.partition("=")
        if int(since.removeprefix("e")) <= EPOCH:
            for each in rule.split():
                behave(each)
            break
    sys.exit(1)
