"""Daemons as real processes. What is reusable lives in `durable_space.testing`; here are only pytest's names for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from durable_space.testing import Client, LocalDaemon, kill_mechanisms

MECHANISMS = kill_mechanisms()


class PatchedDaemon(LocalDaemon):
    """Runs `preface` before its own first line: a fault in the daemon's process alone, not in its zygote or a shim."""

    def __init__(self, folder: Path, preface: str, *options: str) -> None:
        super().__init__(folder, *options)
        self.preface = preface

    def command(self) -> list[str]:
        words = super().command()
        run = "from durable_space.cli import space; space(prog_name='durable space')"
        return [words[0], "-c", f"{self.preface}\n{run}", *words[3:]]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    """Not started yet; whatever it and its commands are doing at the end is ended."""
    made = LocalDaemon(tmp_path, "--kill-mechanism", "subreaper")
    yield made
    made.stop()


@pytest.fixture
def space(daemon: LocalDaemon) -> Client:
    """A client of a running daemon of the test's own."""
    return daemon.start()


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> str:
    """Each way to kill that this machine has."""
    name: str = request.param
    return name


@pytest.fixture
def each_mechanism(mechanism: str, tmp_path: Path) -> Iterator[LocalDaemon]:
    """A daemon, not started yet, for each way to kill that this machine has."""
    made = LocalDaemon(tmp_path, "--kill-mechanism", mechanism)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDaemon]:
    """One running daemon for tests that leave others alone: own request ids, own files, no epochs."""
    made = LocalDaemon(tmp_path_factory.mktemp("space"), "--kill-mechanism", "subreaper")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def shared(shared_daemon: LocalDaemon) -> Client:
    return shared_daemon.client()


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[Callable[..., LocalDaemon]]:
    """Daemons with options of the test's own, none started yet."""
    made: list[LocalDaemon] = []

    def make(*options: str, **more: object) -> LocalDaemon:
        made.append(LocalDaemon(tmp_path / str(len(made)), *options, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def make_patched(tmp_path: Path) -> Iterator[Callable[..., PatchedDaemon]]:
    """`make(preface, *options)`: a daemon, not started yet, that runs this Python before its own."""
    made: list[PatchedDaemon] = []

    def make(preface: str, *options: str) -> PatchedDaemon:
        made.append(PatchedDaemon(tmp_path / f"patched-{len(made)}", preface, *options))
        return made[-1]

    yield make
    for one in made:
        one.stop()
