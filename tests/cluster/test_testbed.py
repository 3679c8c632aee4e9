"""The cluster of the test bed does what the product's tests rely on: pods run, names resolve, things die on demand."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from durable_testbed import BedError, Cluster, paths
from durable_testbed.images import PUBLIC_PYTHON
from durable_testbed.kubectl import is_ready
from durable_testbed.process import started_at, wait_for

SECONDS = 30  # by which anything here has happened


@pytest.fixture
def namespace(cluster: Cluster) -> str:
    return cluster.kubectl.namespace()


class Pods:
    """Pods of the test bed's own image in one namespace."""

    def __init__(self, cluster: Cluster, namespace: str):
        self._cluster = cluster
        self._namespace = f"--namespace={namespace}"

    def run(self, name: str, *words: str, node: str = "", restart: str = "Never", **spec: Any) -> None:
        """Make a pod whose container `main` runs the tool `words`."""
        container = {"name": "main", "image": self._cluster.tools_image, "args": list(words)}
        content = {"containers": [container], "restartPolicy": restart, "terminationGracePeriodSeconds": 1, **spec}
        if node:
            content["nodeName"] = node
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": content}
        self._cluster.kubectl("create", self._namespace, "--filename=-", input=json.dumps(pod))

    def get(self, name: str) -> Any:
        return self._cluster.kubectl.get("pod", name, self._namespace)

    def wait(self, name: str, phase: str) -> None:
        self._cluster.kubectl(
            "wait", f"pod/{name}", self._namespace, f"--for=jsonpath={{.status.phase}}={phase}", f"--timeout={SECONDS}s"
        )

    def wait_ready(self, name: str) -> None:
        self._cluster.kubectl("wait", f"pod/{name}", self._namespace, "--for=condition=Ready", f"--timeout={SECONDS}s")

    def logs(self, name: str) -> str:
        return self._cluster.kubectl("logs", name, self._namespace)


@pytest.fixture
def pods(cluster: Cluster, namespace: str) -> Pods:
    return Pods(cluster, namespace)


def test_two_nodes_take_pods_and_give_their_logs(cluster: Cluster, pods: Pods) -> None:
    """Each node runs a pod to its end, and its output can be read."""
    assert cluster.nodes == ["n1", "n2"]
    assert cluster.kubectl.usable_nodes() == {"n1", "n2"}
    for node in cluster.nodes:
        pods.run(f"hello-{node}", "print", f"hello from {node}", node=node)
    for node in cluster.nodes:
        pods.wait(f"hello-{node}", "Succeeded")
        assert pods.logs(f"hello-{node}") == f"hello from {node}\n"


def test_service_is_reached_by_name_across_nodes(cluster: Cluster, namespace: str, pods: Pods) -> None:
    """A pod on one node finds a Service by its name, and through it a pod on the other."""
    pods.run("web", "serve", ":8080", "here I am", node="n2")
    cluster.kubectl("expose", "pod", "web", "--port=80", "--target-port=8080", f"--namespace={namespace}")
    pods.wait_ready("web")
    address = cluster.kubectl.get("service", "web", f"--namespace={namespace}")["spec"]["clusterIP"]

    # The name appears when the name server has seen the Service, the way there when kube-proxy has: try until both.
    pods.run("lookup", "lookup", f"web.{namespace}.svc.cluster.local", node="n1", restart="OnFailure")
    pods.run("get", "get", "http://web", node="n1", restart="OnFailure")
    pods.wait("lookup", "Succeeded")
    pods.wait("get", "Succeeded")
    assert address in pods.logs("lookup")
    assert pods.logs("get") == "here I am\n"


def test_a_claim_that_names_no_class_gets_a_volume_which_the_pods_group_may_write(
    cluster: Cluster, namespace: str, pods: Pods, images: dict[str, str]
) -> None:
    """What a session's log needs of a cluster: nothing has to be made before."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec}
    cluster.kubectl("create", f"--namespace={namespace}", "--filename=-", input=json.dumps(claim))
    container = {
        "name": "main",
        "image": images["space"],
        "command": ["sh", "-c", "id -u && echo kept > /data/file"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "securityContext": {"runAsUser": 12345},
    }
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    pods.run("writer", node="", containers=[container], volumes=[volume], securityContext={"fsGroup": 777})
    assert _end(pods, "writer") == "Succeeded", pods.logs("writer")
    assert (cluster.volume("data", namespace) / "file").read_text() == "kept\n"


def test_kill_container_is_a_crash(cluster: Cluster, namespace: str, pods: Pods) -> None:
    """The container ends as by a crash, with 137, and the kubelet starts it again in the same pod."""
    pods.run("victim", "pause", restart="Always")
    pods.wait_ready("victim")
    pid = cluster.kill_container("victim", "main", namespace)

    def restarted() -> bool:
        status = pods.get("victim")["status"]["containerStatuses"][0]
        return bool(status["restartCount"] == 1 and "running" in status["state"])

    wait_for("the container runs again", SECONDS, restarted)
    last = pods.get("victim")["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert last["exitCode"] == 128 + signal.SIGKILL
    assert started_at(pid) is None
    assert cluster.container_pid("victim", "main", namespace) != pid
    with pytest.raises(BedError, match="no started container other: there are main"):
        cluster.kill_container("victim", "other", namespace)


def test_pods_and_objects_outlive_the_api_server(cluster: Cluster, namespace: str, pods: Pods) -> None:
    """The API server is killed and comes back: the pod's container is the same."""
    pods.run("steady", "pause")
    pods.wait_ready("steady")
    before = cluster.container_pid("steady", "main", namespace)
    cluster.restart("kube-apiserver")
    assert cluster.container_pid("steady", "main", namespace) == before


def test_commands_inside_end_with_the_cluster_or_their_time(cluster: Cluster) -> None:
    """`run` gives the output, refuses a failure, and ends what does not end; `helm` works."""
    assert cluster.run(["kubectl", "get", "nodes", "--output=name"]).stdout.split() == ["node/n1", "node/n2"]
    assert cluster.run(["cat"], input="through").stdout == "through"
    with pytest.raises(BedError, match="exit 3: wrong"):
        cluster.run(["sh", "-c", "echo wrong >&2; exit 3"])
    with pytest.raises(BedError, match="no end after 1 s"):
        cluster.run(["sleep", "600"], timeout_seconds=1)
    assert cluster.helm("list", "--output=json").strip() == "[]"


def test_the_commands_that_a_start_prints_work_as_they_are(tmp_path: Path) -> None:
    """From another folder, with nothing set: a shell inside with all programs, one command, the end."""
    bed = [sys.executable, "-m", "durable_testbed", "--name=printed"]
    up = subprocess.run(
        [*bed, "up", "--nodes=1"], env={**os.environ, "PYTHONPATH": str(paths.HERE)}, capture_output=True, text=True
    )
    assert up.returncode == 0, up.stderr
    shell, one, down = [line.strip() for line in up.stdout.splitlines() if line.startswith("  ")]

    def run(line: str) -> str:
        plain = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(tmp_path),
            "XDG_CACHE_HOME": str(paths.cache().parents[1]),
        }
        return subprocess.run(
            line, shell=True, cwd=tmp_path, env=plain, capture_output=True, text=True, check=True
        ).stdout

    try:
        assert "kubernetes" in run(one.replace("pods", "services"))
        inside = run(f"{shell} sh -c 'helm version --short; kubectl durable --help; kubectl get storageclass -o name'")
        assert "kubectl durable" in inside
        assert "storageclass.storage.k8s.io/local" in inside
    finally:
        run(down)


def test_the_wheels_are_for_the_python_of_the_containerfiles() -> None:
    """`make images` fetches wheels here that a build installs there, with no package index to get others from."""
    bases = [
        file.read_text().split("ARG BASE=")[1].split()[0]
        for file in (paths.REPOSITORY / "images").glob("*/Containerfile")
    ]
    assert bases == ["python:{}.{}-slim".format(*PUBLIC_PYTHON)] * 3


@pytest.mark.parametrize("silent", [False, True], ids=["killed", "silent"])
def test_a_lost_node_is_unknown_until_it_returns(cluster: Cluster, namespace: str, pods: Pods, silent: bool) -> None:
    """All processes of the node end; its Node becomes Unknown; after its return it takes pods."""
    pods.run("lost", "pause", node="n2")
    pods.wait_ready("lost")
    pid = cluster.container_pid("lost", "main", namespace)

    def condition() -> str:
        conditions = cluster.kubectl.get("node", "n2")["status"]["conditions"]
        return str(next(c["status"] for c in conditions if c["type"] == "Ready"))

    cluster.lose_node("n2", silent=silent)
    try:
        assert started_at(pid) is None
        wait_for("the node is Unknown", SECONDS, lambda: condition() == "Unknown")
        assert is_ready(cluster.kubectl.get("node", "n1"))
    finally:
        cluster.return_node("n2", reboot=silent)
    pods.wait("lost", "Failed")
    pods.run("after", "print", "back", node="n2")
    pods.wait("after", "Succeeded")
    assert pods.logs("after") == "back\n"


def test_product_images_run_under_restricted_pod_security(cluster: Cluster, images: dict[str, str]) -> None:
    """Each image has its part of the product, for a plain user on a read-only root; the Space has what an agent needs."""
    name = cluster.kubectl.namespace()
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    pods = Pods(cluster, name)
    python = "durable --version && /opt/durable/bin/python -c"
    words = {
        "operator": f"{python} 'import durable_operator, kopf, kubernetes'",
        "driver": f"{python} 'import durable_driver, durable_spaces, pydantic_ai'",
        "space": f"{python} 'import durable_space, grpc' && test -w . && git --version && ps && python -m pytest --version",
    }
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for image, command in words.items():
        mount = {"name": "workspace", "mountPath": "/workspace"}
        container = {"name": "main", "image": images[image], "command": ["sh", "-c", command], "volumeMounts": [mount]}
        volumes = [{"name": "workspace", "emptyDir": {}}]
        pods.run(image, containers=[{**container, "securityContext": security}], volumes=volumes)
    for image in words:
        phase = _end(pods, image)
        assert phase == "Succeeded", f"{image}: {pods.logs(image)}"


def _end(pods: Pods, name: str) -> str:
    """The phase in which a pod ends."""
    wait_for(f"pod {name} ended", SECONDS, lambda: pods.get(name)["status"]["phase"] in ("Succeeded", "Failed"))
    return str(pods.get(name)["status"]["phase"])
