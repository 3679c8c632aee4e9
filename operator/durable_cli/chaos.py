"""`durable run --chaos`: one run for the eye, or a campaign of many; both end with a comparison against an undisturbed run."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import statistics
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import click
import yaml
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from durable_base.errors import UsageError
from durable_base.trees import remove_tree
from durable_cli.arguments import LogArguments
from durable_cli.chaos_run import ChaosRun, Result, judge
from durable_cli.files import read_manifests
from durable_cli.precheck import precheck
from durable_cli.screen import screen
from durable_cli.words import duration
from durable_local.apply import resolve
from durable_local.compare import table
from durable_local.events import Event
from durable_local.faults import TARGETS
from durable_local.layout import Home, Lock, command, session_home


@dataclass(frozen=True, slots=True)
class Subject:
    """What is run again and again: one session whose model is a script, so that two runs can be compared byte for byte."""

    path: Path
    session: str
    steps: int


def demonstrate(path: Path, state: Path, output: str, *, seed: int | None) -> int:
    """One seeded run with kills, then one without; 0 if their workspaces are equal and nothing else is wrong."""
    subject = _subject(path)
    seed = secrets.randbelow(10**6) if seed is None else seed
    folder = _fresh(state / "chaos" / f"seed-{seed}", subject)
    disturbed, undisturbed = folder / "killed", folder / "undisturbed"
    with screen(output, LogArguments(disturbed), [subject.session]) as shown:
        shown.say(
            f"seed {seed}: the driver is killed {TARGETS.count('driver')} times, the Space once, the coordinator once"
        )
        result = ChaosRun(path, disturbed, subject.session, subject.steps, shown.show).run(seed)
        shown.say("the same session again, undisturbed, to compare with ...")
        reference = ChaosRun(path, undisturbed, subject.session, subject.steps, _ignore).run(None)
        judge(reference, subject.session, None)
        if not reference.problems:
            judge(result, subject.session, undisturbed)
        problems = result.problems + [f"undisturbed run: {problem}" for problem in reference.problems]
        replay = command(state, "run", "--chaos", "--seed", str(seed), str(path))
        for line in _verdict(subject, result, reference, problems, replay):
            shown.say(line)
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    return 1 if problems else 0


def _verdict(subject: Subject, result: Result, reference: Result, problems: list[str], replay: str) -> Iterator[str]:
    kills = ", ".join(f"{target} {count}" for target, count in sorted(result.kills.items()))
    yield f"killed: {kills}     recoveries: {_counts(result.recoveries)}"
    yield f"with kills {duration(result.seconds)}, undisturbed {duration(reference.seconds)}"
    home = session_home(result.state, subject.session)
    yield f"workspace: {home.workspace}"
    yield f"log: {home.log}"
    yield f"both runs stay to be looked at; to remove them: {shlex.join(('rm', '-r', str(result.state.parent)))}"
    if problems:
        yield f"NOT EQUAL to an undisturbed run; replay: {replay}"
    else:
        files = len(table(home.workspace))
        yield f"equal, byte for byte: the workspace ({files} files) and that of the undisturbed run"


def campaign(path: Path, state: Path, output: str, *, seed: int | None, runs: int, jobs: int) -> int:
    """`runs` seeds from `seed` on, `jobs` at once; folders of failed runs stay. 0 if all were as if undisturbed."""
    subject = _subject(path)
    base = 1 if seed is None else seed
    folder = _fresh(state / "campaign" / f"seed-{base}", subject)
    undisturbed = folder / "undisturbed"
    reference = ChaosRun(path, undisturbed, subject.session, subject.steps, _ignore).run(None)
    judge(reference, subject.session, None)
    if reference.problems:
        raise UsageError(f"the undisturbed run already fails: {reference.problems[0]} (kept in {undisturbed})")

    stop = threading.Event()

    def one(number: int) -> Result:
        result = ChaosRun(path, folder / f"seed-{number}", subject.session, subject.steps, _ignore, stop).run(number)
        judge(result, subject.session, undisturbed)
        if not result.problems:
            remove_tree(result.state)
        return result

    results = []
    with ThreadPoolExecutor(jobs) as pool, _progress(runs) as advance:
        futures = [pool.submit(one, number) for number in range(base, base + runs)]
        try:
            for future in as_completed(futures):
                result = future.result()
                results.append(result)
                advance()
                for problem in result.problems:
                    click.echo(f"seed {result.seed}: {problem}", err=True)
        except BaseException:
            stop.set()  # interrupted: end the runs that go on, begin no more
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    failed = [result for result in results if result.problems]
    for result in failed:
        replay = command(state, "run", "--chaos", "--seed", str(result.seed), str(path))
        click.echo(f"replay: {replay}     kept: {result.state}", err=True)
    click.echo(summary_line(results))
    return 1 if failed else 0


def summary_line(results: Iterable[Result]) -> str:
    """One line: runs, kills and recoveries by kind, and how long it took until a new driver was at work."""
    results = list(results)
    failed = sum(bool(result.problems) for result in results)
    kills = sum((result.kills for result in results), Counter[str]())
    recoveries = sum((result.recoveries for result in results), Counter[str]())
    resumes = sorted(seconds for result in results for seconds in result.resume_seconds)
    at = f"p50={_quantile(resumes, 50)} p95={_quantile(resumes, 95)}" if resumes else "none"
    return (
        f"SUMMARY runs={len(results)} ok={len(results) - failed} failed={failed}  kills: {_counts(kills)}  "
        f"recoveries: {_counts(recoveries)}  resume: {at}"
    )


def _quantile(values: list[float], percent: int) -> str:
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
    return duration(cuts[percent - 1]).replace(" ", "")


def _counts(counter: Counter[str]) -> str:
    return " ".join(f"{name}={count}" for name, count in sorted(counter.items())) or "none"


def _subject(path: Path) -> Subject:
    """Raise UsageError for what can't be compared: another model than the scripted one answers differently each time."""
    wanted = resolve(read_manifests(path), os.environ)
    if len(wanted) != 1:
        raise UsageError(f"{path}: --chaos runs one session, and there are {len(wanted)}; give a file with one")
    if wanted[0].space_spec is not None:
        raise UsageError(
            f"{wanted[0].manifest.where}: --chaos compares the session's own workspace; give `space` instead of spec.spaceRef"
        )
    inputs = wanted[0].inputs
    agent = yaml.safe_load(inputs.agent) if inputs.agent else {}
    if inputs.script is None or agent.get("model", {}).get("provider") != "scripted":
        raise UsageError(
            f"{wanted[0].manifest.where}: --chaos compares two runs byte for byte, which needs spec.agent.model.provider "
            "scripted and spec.agent.scriptFrom"
        )
    precheck(wanted, os.environ)
    steps = sum(len(step.get("calls") or ()) for step in yaml.safe_load(inputs.script)["steps"])
    return Subject(path, wanted[0].manifest.name, steps)


def _fresh(folder: Path, subject: Subject) -> Path:
    """An empty folder; what an earlier run with the same seed left is removed, unless that one is still at work."""
    for path in folder.glob(f"*/{subject.session}"):
        Lock(Home(path)).release()
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _ignore(event: Event) -> None:
    """Nobody watches this run."""


class _progress:
    """A bar on a terminal; elsewhere a line for every tenth of the runs."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._done = 0
        self._bar = Progress(
            TextColumn("chaos"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), disable=not sys.stdout.isatty()
        )

    def __enter__(self) -> _progress:
        self._bar.start()
        self._task = self._bar.add_task("runs", total=self._runs)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self) -> None:
        self._done += 1
        self._bar.advance(self._task)
        if not sys.stdout.isatty() and (self._done % max(self._runs // 10, 1) == 0 or self._done == self._runs):
            click.echo(f"{self._done} of {self._runs} runs")
