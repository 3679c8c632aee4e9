"""SpaceExecutionEnv on a real daemon holds what every ExecutionEnv must."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from durable_base.floor import Floor, new_incarnation
from durable_harness.testing.env_conformance import CHECKS, Check, MakeEnv
from durable_space.testing import LocalDaemon
from durable_spaces.client import Address, FencedSpace, SpaceClient
from durable_spaces.env import SpaceExecutionEnv
from durable_spaces.testing import WithoutSession

EPOCHS = itertools.count(1)


@pytest.fixture(scope="module")
def daemon() -> Iterator[LocalDaemon]:
    folder = Path(tempfile.mkdtemp(prefix="ec-")).resolve()
    (folder / "temporary").mkdir()
    daemon = LocalDaemon(folder, environment={"TMPDIR": str(folder / "temporary")})
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(folder)


@pytest.fixture
async def space(daemon: LocalDaemon) -> AsyncIterator[FencedSpace]:
    client = SpaceClient(Address(f"unix:{daemon.socket}"), Floor(next(EPOCHS), new_incarnation()))
    yield await client.advance(await client.info())
    await client.close()


@pytest.fixture
def make_env(space: FencedSpace, daemon: LocalDaemon) -> MakeEnv:
    made = itertools.count(1)

    async def make(*, variables: Mapping[str, str] | None = None, shell: str | None = None) -> SpaceExecutionEnv:
        name = f"env-{space.own.epoch}-{next(made)}"
        (daemon.workspace / name).mkdir()
        return SpaceExecutionEnv(space, WithoutSession(space), name, env=variables, shell=shell)

    return make


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.number:02d}-{check.name}")
async def test_the_environment_of_a_space(check: Check, make_env: MakeEnv) -> None:
    await check.run(make_env)
