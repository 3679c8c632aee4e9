"""The control plane of the test bed starts, enforces what the product's CRDs rely on, and leaves nothing behind."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from durable_testbed import BedError, ControlPlane, MissingError, binaries, requirements, teardown
from durable_testbed.process import Daemons, started_at, wait_for
from durable_testbed.requirements import Level
from durable_testbed.run_folder import RunFolder

GROUP = "testbed.example.com"
THING: dict[str, Any] = {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": {"name": "one"}}
# What the product's CRDs have: an epoch in the status never goes back, also not by its removal.
NEVER_BACK = (
    "!has(oldSelf.status) || !has(oldSelf.status.epoch)"
    " || (has(self.status) && has(self.status.epoch) && self.status.epoch >= oldSelf.status.epoch)"
)
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"things.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "Thing", "plural": "things", "singular": "thing"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-validations": [{"rule": NEVER_BACK, "message": "the epoch never goes back"}],
                        "properties": {"status": {"type": "object", "properties": {"epoch": {"type": "integer"}}}},
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def things(control_plane: ControlPlane) -> str:
    """A namespace in which objects of the kind Thing can be made."""
    kubectl = control_plane.kubectl
    kubectl("apply", "--filename=-", input=json.dumps(CRD))
    kubectl("wait", f"crd/things.{GROUP}", "--for=condition=Established", "--timeout=30s")
    return kubectl.namespace()


def test_transition_rule_is_enforced_on_status(control_plane: ControlPlane, things: str) -> None:
    """Neither a smaller epoch, nor its removal, nor that of the whole status gets through."""
    kubectl = control_plane.kubectl

    def patch_status(status: object) -> str:
        patch = json.dumps({"status": status})
        done = kubectl.run(
            *(
                "patch",
                "thing",
                "one",
                f"--namespace={things}",
                "--subresource=status",
                "--type=merge",
                f"--patch={patch}",
            )
        )
        return "" if done.returncode == 0 else done.stderr

    kubectl("create", f"--namespace={things}", "--filename=-", input=json.dumps(THING))
    assert patch_status({"epoch": 2}) == ""
    assert patch_status({"epoch": 3}) == ""
    for refused in ({"epoch": 2}, {"epoch": None}, None):
        assert "the epoch never goes back" in patch_status(refused)


def test_owned_objects_are_collected(control_plane: ControlPlane) -> None:
    """The controller manager runs: what an owner leaves is removed."""
    kubectl = control_plane.kubectl
    namespace = kubectl.namespace()
    kubectl("create", "configmap", "owner", f"--namespace={namespace}")
    owner = kubectl.get("configmap", "owner", f"--namespace={namespace}")["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    metadata = {"name": "owned", "namespace": namespace, "ownerReferences": [reference]}
    kubectl("create", "--filename=-", input=json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))
    kubectl("delete", "configmap", "owner", f"--namespace={namespace}")
    kubectl("wait", "configmap/owned", f"--namespace={namespace}", "--for=delete", "--timeout=60s")


@pytest.mark.parametrize("part", ["kube-apiserver", "etcd"])
def test_objects_survive_a_restart(control_plane: ControlPlane, part: str) -> None:
    """A part that was killed comes back with what was written before."""
    namespace = control_plane.kubectl.namespace()
    control_plane.restart(part)
    assert namespace in control_plane.kubectl("get", "namespaces", "--output=name")


def test_stop_leaves_nothing(control_plane: ControlPlane) -> None:
    """A second control plane runs beside the session's; after its end neither process nor file is left."""
    plane = ControlPlane.start()
    folder = plane.kubeconfig.parent
    assert plane.url != control_plane.url
    pids = _recorded_pids(folder)
    assert len(pids) == 3
    plane.stop()
    assert [pid for pid in pids if started_at(pid)] == []
    assert not folder.exists()
    assert control_plane.kubectl.ready()


def test_leftovers_of_a_killed_run_are_removed(control_plane: ControlPlane) -> None:
    """What a run leaves whose process was killed, the next run ends; a run that still has its process stays."""
    run = RunFolder.new("plane")
    Daemons(run.path).start("sleeper", "sleep", "600")
    (pid,) = _recorded_pids(run.path)
    run.release()  # as when its process is killed: the lock is free, everything else is still there
    teardown.clean_abandoned()
    assert started_at(pid) is None
    assert not run.path.exists()
    assert control_plane.kubectl.ready()


def test_a_reused_pid_is_left_alone(tmp_path: Path) -> None:
    """A record whose start time is another one's does not lead to a kill."""
    daemons = Daemons(tmp_path)
    daemons.start("sleeper", "sleep", "600")
    try:
        record = tmp_path / "parts" / "sleeper.stat"
        recorded = record.read_text()
        fields = recorded.split()
        fields[21] = str(int(fields[21]) - 1)
        record.write_text(" ".join(fields))
        assert daemons.pid("sleeper") is None
        daemons.stop("sleeper")
        assert started_at(int(fields[0])) is not None
        record.write_text(recorded)
    finally:
        daemons.stop("sleeper")
    assert daemons.pid("sleeper") is None


def test_a_daemon_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    """The error names the daemon and has the end of its log."""
    daemons = Daemons(tmp_path)
    daemons.start("broken", "sh", "-c", "echo no such flag; exit 1")
    wait_for("it ended", 5, lambda: daemons.pid("broken") is None)
    with pytest.raises(BedError, match="broken has ended: no such flag"):
        daemons.must_run()


def test_assets_folder_must_be_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KUBEBUILDER_ASSETS without an API server is refused, with what is missing."""
    (tmp_path / "etcd").touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(MissingError, match="lacks kube-apiserver, kubectl"):
        binaries.for_control_plane()


def test_missing_programs_are_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without anything, one line says what to run."""
    monkeypatch.setattr(requirements, "SYSTEM_PATH", os.devnull)
    line = requirements.missing(Level.IMAGES)[0]
    assert "buildah, mmdebstrap missing: run" in line
    assert "install-packages.sh as root" in line


def _recorded_pids(folder: Path) -> list[int]:
    return [int(record.read_text().split()[0]) for record in folder.glob("parts/*.stat")]
