"""SpaceExecutionEnv on the real cua-spacesd, through the Space helper, holds what every ExecutionEnv must."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from durable_base.floor import Floor, new_incarnation
from durable_harness.testing.env_conformance import CHECKS, Check, MakeEnv
from durable_spaces.client import Address
from durable_spaces.cua import CuaSpaceClient, HelperSpace
from durable_spaces.env import SpaceExecutionEnv
from durable_spaces.testing import WithoutSession

EPOCHS = itertools.count(1)


@pytest.fixture
async def space(theirs, tmp_path: Path) -> AsyncIterator[HelperSpace]:
    (tmp_path / "token").write_text(theirs.token)
    address = Address(theirs.address, tmp_path / "token")
    own = Floor(next(EPOCHS), new_incarnation())
    (tmp_path / "temporary").mkdir()
    temporary = {"TMPDIR": str(tmp_path / "temporary")}
    client = CuaSpaceClient(address, own, workspace=str(theirs.workspace), helper_env=temporary)
    yield await client.advance(await client.info())
    await client.close()


@pytest.fixture
def make_env(space: HelperSpace, theirs) -> MakeEnv:
    made = itertools.count(1)

    async def make(*, variables: Mapping[str, str] | None = None, shell: str | None = None) -> SpaceExecutionEnv:
        name = f"env-{space.own.epoch}-{next(made)}"
        (theirs.workspace / name).mkdir()
        return SpaceExecutionEnv(space, WithoutSession(space), name, env=variables, shell=shell)

    return make


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.number:02d}-{check.name}")
async def test_the_environment_of_a_space(check: Check, make_env: MakeEnv) -> None:
    await check.run(make_env)
