"""How a drive ended decides its exit code, outcome and reason; a chain of causes is judged by the first that says something."""

import asyncio
import sqlite3

import pytest

from durable_base.errors import HaltError, StaleEpochError, UsageError
from durable_base.floor import Floor
from durable_driver.errors import PermanentFailure, StoppedError
from durable_driver.exit_codes import Ending, judge_ending
from durable_harness.errors import BlockedError, CorruptLogError, SessionFailedError, UnansweredError

STALE = StaleEpochError("log", Floor(3, "a"), Floor(5, "b"))


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code", "outcome", "reason"),
    [
        (None, 0, "settled", "Completed"),
        (STALE, 75, "fenced", "Fenced"),
        (HaltError("SpaceUnreachable", "gone"), 1, "halted", "SpaceUnreachable"),
        (HaltError("MissingCapability", "no ledger", permanent=True), 78, "failed", "MissingCapability"),
        (PermanentFailure("NoTickets", "none left"), 78, "failed", "NoTickets"),
        (UnansweredError("model_error", "the provider refused"), 78, "failed", "ModelError"),
        (UnansweredError("no_model"), 78, "failed", "NoModel"),
        (BlockedError(7, "pi.tool", "restart_limit"), 78, "failed", "RestartLimit"),
        (CorruptLogError("a base is missing"), 78, "failed", "CorruptLog"),
        (UsageError("DURABLE_INPUT is not set: set it"), 78, "failed", "InvalidConfiguration"),
        (StoppedError("Stopped", "SIGTERM"), 143, "stopped", "Stopped"),
        (RuntimeError("secret"), 1, "crashed", "Crashed"),
        (asyncio.CancelledError(), 1, "crashed", "Crashed"),
        (caused(SessionFailedError("over"), STALE), 75, "fenced", "Fenced"),
        (caused(SessionFailedError("over"), HaltError("SpaceChanged", "x")), 1, "halted", "SpaceChanged"),
        (caused(SessionFailedError("over"), sqlite3.OperationalError("disk I/O error")), 1, "crashed", "Crashed"),
        (ExceptionGroup("several", [RuntimeError("x"), STALE]), 75, "fenced", "Fenced"),
        (caused(RuntimeError("x"), caused(RuntimeError("y"), STALE)), 75, "fenced", "Fenced"),
    ],
)
def test_row(error: BaseException | None, code: int, outcome: str, reason: str) -> None:
    ending = judge_ending(error)
    assert (ending.code, ending.outcome, ending.reason) == (code, outcome, reason)
    assert "\n" not in ending.message


def test_a_fenced_drive_names_the_floor() -> None:
    assert judge_ending(caused(SessionFailedError("over"), STALE)).floor == Floor(5, "b")


def test_a_ring_of_causes_ends() -> None:
    one, two = RuntimeError("1"), RuntimeError("2")
    one.__cause__, two.__cause__ = two, one
    assert judge_ending(one).code == 1


def test_a_crash_tells_its_type_and_place_but_no_content() -> None:
    def work() -> None:
        raise RuntimeError("the prompt was: secret")

    with pytest.raises(RuntimeError) as caught:
        work()
    ending = judge_ending(caught.value)
    assert ending.message.startswith("RuntimeError in ")
    assert "secret" not in ending.message


def test_what_the_system_says_is_shown() -> None:
    assert "No space left on device" in judge_ending(OSError(28, "No space left on device", "/secret/path")).message
    error = caused(SessionFailedError("over"), sqlite3.OperationalError("database or disk is full"))
    assert judge_ending(error) == Ending(1, "crashed", "Crashed", "OperationalError: database or disk is full", None)
