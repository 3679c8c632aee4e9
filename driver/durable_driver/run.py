"""`run_durable_session(start)`: the process around one drive. Reads the environment, runs the drive, exits with its code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from durable_base.errors import UsageError
from durable_driver.environment import DriveEnvironment, parse_environment
from durable_driver.exit_codes import Ending, judge_ending
from durable_driver.life import Life, Start
from durable_driver.report import DriveFacts, compose_report, write_report
from durable_driver.variables import SECRETS


def run_durable_session(start: Start) -> NoReturn:
    """Drive the session that the environment describes, for one attempt, and exit.

    `start` opens the harness and submits the session's input; it is called in every drive, and must do the same in each:

        async def start(drive: DriveContext) -> Submission:
            harness = await drive.open_harness(models={...}, tools=[...])
            root = await harness.root(Agent(model=..., tools=[...]))
            return await root.submit(drive.input, request_id=drive.request_id)

    Exit codes: 0 settled; 75 a newer driver exists; 78 no later drive can succeed (a bad environment, PermanentFailure, a
    missing capability, an input that ended unanswered); 143 asked to stop; anything else: crashed, to be driven again.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        environment = parse_environment(os.environ)
    except UsageError as error:
        _refuse(error)
    for name in SECRETS:
        os.environ.pop(name, None)  # before anything is started that could inherit it
    sys.exit(asyncio.run(_drive(environment, start)))


async def _drive(environment: DriveEnvironment, start: Start) -> int:
    life = Life(environment, start)
    ending, failure = await life.run()
    if ending.code:
        _say(ending, failure)
    if not life.closed:
        # Something ignores that it was cancelled, and the loop would wait for it. How the drive ended is settled.
        sys.stdout.flush()
        os._exit(ending.code)
    return ending.code


def _refuse(error: UsageError) -> NoReturn:
    """A bad environment: one line, and a report where there is a place for one, so that a condition can show it."""
    ending = judge_ending(error)
    _say(ending, error)
    facts = DriveFacts(session=os.environ.get("CUA_SESSION", ""))
    path = os.environ.get("DURABLE_REPORT")
    with contextlib.suppress(OSError, ValueError):
        write_report(Path(path) if path else None, compose_report(facts, ending))
    sys.exit(ending.code)


def _say(ending: Ending, failure: BaseException | None) -> None:
    """One line. A crash says where it came from as well, without the texts of its errors: they may hold content."""
    print(f"durable driver: {ending.message or ending.reason}", file=sys.stderr, flush=True)  # noqa: T201
    if ending.outcome == "crashed" and failure is not None:
        frames = traceback.extract_tb((failure.__cause__ or failure).__traceback__)
        for frame in frames:
            print(f"  {frame.filename}:{frame.lineno} in {frame.name}", file=sys.stderr)  # noqa: T201
