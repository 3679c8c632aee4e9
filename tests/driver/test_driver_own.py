"""A driver of one's own: a start function in the place of the built-in agent."""

import sys
from typing import Any

import pytest

OWN = """
import os
from durable_driver import DriveContext, run_durable_session
from durable_harness import Agent, ScriptedModel, tool

assert "CUA_SESSION_SPACE_TOKEN" in os.environ
SCRIPT = '''
steps:
- calls: [{search_tickets: {query: bug}}]
- {expect: "ticket 7: bug, None", answer: found}
'''

@tool
async def search_tickets(query: str) -> str:
    '''Search.'''
    return f"ticket 7: {query}, {os.environ.get('CUA_SESSION_SPACE_TOKEN')}"

async def start(drive: DriveContext):
    model = ScriptedModel.load(SCRIPT)
    harness = await drive.open_harness(models={"own": model}, tools=[search_tickets])
    root = await harness.root(Agent(model="own", tools=["search_tickets"]))
    return await root.submit(drive.input, request_id=drive.request_id)

if __name__ == "__main__":
    run_durable_session(start)
"""


def test_a_driver_of_ones_own_runs_and_its_tools_see_no_token(place: Any) -> None:
    program = place.folder / "own.py"
    program.write_text(OWN)
    drive = place.start(1, sys.executable, str(program), DURABLE_AGENT=None)
    assert drive.wait() == 0, drive.err.read_text()
    assert drive.answer() == "found"
    assert drive.report()["reason"] == "Completed"


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        ("raise PermanentFailure('NoTickets', 'none are left')", 78, "NoTickets"),
        ("raise RuntimeError('secret')", 1, "Crashed"),
        ("await asyncio.sleep(3600)", 143, "Stopped"),
    ],
)
def test_what_a_start_function_raises_is_judged(place: Any, body: str, code: int, reason: str) -> None:
    program = place.folder / "own.py"
    program.write_text(
        "import asyncio\nfrom durable_driver import PermanentFailure, run_durable_session\n"
        f"async def start(drive):\n    {body}\nrun_durable_session(start)\n"
    )
    drive = place.start(1, sys.executable, str(program))
    if code == 143:
        place.until(lambda: drive.events("log.opened"))
        drive.process.terminate()
    assert drive.wait() == code
    assert drive.report()["reason"] == reason
    assert "secret" not in drive.err.read_text() + drive.report_path.read_text()


STUBBORN = """
import asyncio, sys
from durable_driver import run_durable_session
from durable_harness import Agent, ScriptedModel, tool

@tool
async def stubborn() -> str:
    '''Ignores that it is cancelled.'''
    print("stubborn", file=sys.stderr, flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def start(drive):
    model = ScriptedModel.load("steps:\\n- calls: [{stubborn: }]\\n")
    harness = await drive.open_harness(models={"own": model}, tools=[stubborn])
    root = await harness.root(Agent(model="own", tools=["stubborn"]))
    return await root.submit(drive.input, request_id=drive.request_id)

run_durable_session(start)
"""


def test_what_does_not_let_itself_be_stopped_is_cut_off_after_the_grace(place: Any) -> None:
    program = place.folder / "own.py"
    program.write_text(STUBBORN)
    drive = place.start(1, sys.executable, str(program), DURABLE_GRACE_SECS="0.5")
    place.until(lambda: "stubborn" in drive.err.read_text())
    drive.process.terminate()
    assert drive.wait(20) == 143
    assert drive.report()["outcome"] == "stopped"
