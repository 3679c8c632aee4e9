"""A batch: some rounds on one data folder, in a process of its own."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from campaign.space.crashes import Report, Rounds
from campaign.space.epochs import EpochRounds


def crash_batch(mechanism: str, seed: int, rounds: int) -> dict[str, object]:
    report = Report()
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    batch = Rounds(folder, mechanism, seed)
    failure = ""
    try:
        batch.run(rounds, report)
    except Exception as error:
        failure = _describe(error, folder)
        batch.daemon.stop()
    else:
        shutil.rmtree(folder)
    return {"seed": seed, "rounds": report.rounds, "commands": report.commands, "lost": report.lost,
            "faults": report.faults, "failure": failure}  # fmt: skip


def epoch_batch(mechanism: str, seed: int, rounds: int) -> dict[str, object]:
    seen: Counter[str] = Counter()
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    batch = EpochRounds(folder, mechanism, seed)
    failure = ""
    try:
        batch.run(rounds, seen)
    except Exception as error:
        failure = _describe(error, folder)
        batch.daemon.stop()
    else:
        shutil.rmtree(folder)
    return {
        "seed": seed,
        "rounds": rounds,
        "commands": sum(seen.values()),
        "lost": 0,
        "faults": seen,
        "failure": failure,
    }


def _describe(error: Exception, folder: Path) -> str:
    text = "".join(traceback.format_exception(error)[-2:]).strip()
    return f"{text}\nkept: {folder}"
