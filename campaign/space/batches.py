"""A batch: some rounds on one data folder, in a process of its own."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from campaign.space.crashes import Report, Rounds
from campaign.space.epochs import EpochRounds


@dataclass(frozen=True)
class Result:
    seed: int
    rounds: int
    commands: int
    lost: int  # commands whose shim was killed
    faults: Counter[str]  # or kinds of trees
    failure: str  # empty: every promise held


def crash_batch(mechanism: str, seed: int, rounds: int) -> Result:
    report = Report()
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    batch = Rounds(folder, mechanism, seed)
    failure = ""
    try:
        batch.run(rounds, report)
    except Exception as error:
        failure = _describe(error, folder)
        with suppress(AssertionError):  # it may have been stopped already
            batch.daemon.stop()
    else:
        shutil.rmtree(folder)
    return Result(seed, report.rounds, report.commands, report.lost, report.faults, failure)


def epoch_batch(mechanism: str, seed: int, rounds: int) -> Result:
    seen: Counter[str] = Counter()
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    batch = EpochRounds(folder, mechanism, seed)
    failure = ""
    try:
        batch.run(rounds, seen)
    except Exception as error:
        failure = _describe(error, folder)
        with suppress(AssertionError):  # it may have been stopped already
            batch.daemon.stop()
    else:
        shutil.rmtree(folder)
    return Result(seed, rounds, sum(seen.values()), 0, seen, failure)


def _describe(error: Exception, folder: Path) -> str:
    text = "".join(traceback.format_exception(error)[-2:]).strip()
    return f"{text}\nkept: {folder}"
