"""Two sessions of one manifest on one Space: one after the other, and each with an epoch above the other's."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from durable_local.layout import session_home, space_home

if TYPE_CHECKING:
    from conftest import Local


def session(name: str, double: str) -> dict[str, Any]:
    command = [sys.executable, double, "e1=step settle"]
    spec = {"input": "x", "spaceRef": {"name": "shared"}, "driver": {"command": command}}
    head = {"apiVersion": "durablesessions.dev/v1alpha1", "kind": "DurableSession", "metadata": {"name": name}}
    return {**head, "spec": spec}


def two_on_one(local: "Local", double: str) -> None:
    space = {"apiVersion": "durablesessions.dev/v1alpha1", "kind": "DurableSpace", "metadata": {"name": "shared"}}
    documents = [{**space, "spec": {}}, session("s", double), session("t", double)]
    (local.folder / "s.yaml").write_text(yaml.safe_dump_all(documents))


def test_the_second_waits_and_is_issued_a_greater_epoch(local: "Local", double: str) -> None:
    two_on_one(local, double)
    run = local.run()
    assert run.child.returncode == 0, run.errors()
    assert run.told("session.ready", session="t", reason="WaitingForLease")
    one, other = (session_home(local.state, name).epochs_seen() for name in ("s", "t"))
    assert one == (1,)
    assert min(other) > max(one)
    assert space_home(local.state, "s", "shared").workspace.is_dir()
    assert local.leftovers() == []


def test_paths_that_are_told_are_there_and_answers_say_whose_they_are(local: "Local", double: str) -> None:
    two_on_one(local, double)
    told = local.command("run", str(local.folder / "s.yaml")).splitlines()
    assert {"s: answer: 42", "t: answer: 42"} <= set(told)
    drives = [line.split("Succeeded ")[1].split(", ")[1] for line in told if "Succeeded " in line]
    assert drives == ["1 epoch", "1 epoch"], "each was driven once, whatever number its epoch has"
    paths = [line.split("workspace: ")[1] for line in told if "workspace: " in line]
    paths += [line.split()[1] for line in local.command("describe", "t").splitlines() if line.startswith("Workspace")]
    assert len(paths) == 3
    assert all(Path(path).is_dir() for path in paths)


def test_the_space_outlives_its_sessions_and_is_deleted_by_its_own_name(local: "Local", double: str) -> None:
    two_on_one(local, double)
    local.run()
    assert "of t too" in local.command("delete", "s")
    assert "(t)" in local.refusal("delete", "shared.space")
    assert "durable delete shared.space" in local.command("delete", "t")
    local.command("delete", "shared.space")
    assert list(local.state.iterdir()) == []
    assert "no shared Space" in local.refusal("delete", "shared.space")
