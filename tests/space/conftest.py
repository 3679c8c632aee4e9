"""Daemons as real processes. What is reusable lives in `durable_space.testing`; here are only pytest's names for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from durable_space.testing import Client, LocalDaemon, kill_mechanisms

MECHANISMS = kill_mechanisms()


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
def each_mechanism(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalDaemon]:
    """A daemon, not started yet, for each way to kill that this machine has."""
    made = LocalDaemon(tmp_path, "--kill-mechanism", request.param)
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
