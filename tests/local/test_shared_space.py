"""Two sessions of one manifest on one Space: one after the other, and each with an epoch above the other's."""

import sys
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


def test_the_second_waits_and_is_issued_a_greater_epoch(local: "Local", double: str) -> None:
    space = {"apiVersion": "durablesessions.dev/v1alpha1", "kind": "DurableSpace", "metadata": {"name": "shared"}}
    documents = [{**space, "spec": {}}, session("s", double), session("t", double)]
    (local.folder / "s.yaml").write_text(yaml.safe_dump_all(documents))
    run = local.run()
    assert run.child.returncode == 0, run.errors()
    assert run.told("session.ready", session="t", reason="WaitingForLease")
    one, other = (session_home(local.state, name).epochs_seen() for name in ("s", "t"))
    assert one == (1,)
    assert min(other) > max(one)
    assert space_home(local.state, "s", "shared").workspace.is_dir()
    assert local.leftovers() == []
