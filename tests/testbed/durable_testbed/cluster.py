"""A cluster of two nodes, as long as the process that started it wants, or until `down`.

All parts are plain processes in one network namespace and one cgroup tree. What the API shows after a node was lost, and
when, is a matter of `loss_seconds`, which is 40 s in most real clusters and 8 s here.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Self

from durable_testbed import binaries, cgroups, network, oci, requirements, services, teardown, volumes
from durable_testbed.control_plane import (
    READY_SECONDS,
    SERVICE_NAMES,
    Endpoints,
    start_controllers,
    start_storage_and_api,
)
from durable_testbed.errors import BedError
from durable_testbed.kubectl import Kubectl
from durable_testbed.node import Node
from durable_testbed.pki import Authority
from durable_testbed.process import ENTER, Daemons, say, wait_for
from durable_testbed.run_folder import RunFolder

NODES = 2
LOSS_SECONDS = 8


class Cluster:
    """A running cluster; `kubeconfig` has the rights of `system:masters` and works inside the namespace only.

    Inside is where `kubectl`, `helm`, `run` and `popen` work. `tools_image` is an image that every node has, to make
    pods of before any other is loaded. A claim that names no class gets a volume of the node that its pod is placed on.
    """

    def __init__(self, run: RunFolder, programs: binaries.Binaries):
        self._run = run
        self._programs = programs
        self._namespace = network.Namespace(run.id)
        self._daemons = Daemons(run.path, self._namespace.prefix, programs.path())
        self._authority = Authority(run.path / "pki")
        self._state = run.path / "cluster.json"
        self._volumes = run.path / "volumes"
        self._ends = Endpoints(address=network.GATEWAY)
        self.kubeconfig = run.path / "admin.conf"
        self.kubectl = Kubectl(programs["kubectl"], self.kubeconfig, self._namespace.prefix)
        self.logs_dir = self._daemons.logs
        self.url = self._ends.url
        self.tools_image, self._tools_archive = oci.tools_image()

    @classmethod
    def start(cls, *, nodes: int = NODES, loss_seconds: int = LOSS_SECONDS) -> Self:
        """Start a cluster that ends with this process; MissingError if the machine lacks something for it."""
        requirements.check(requirements.Level.CLUSTER)
        teardown.clean_abandoned()
        programs = binaries.for_cluster()
        cluster = cls(RunFolder.new("cluster"), programs)
        cluster.up(nodes=nodes, loss_seconds=loss_seconds)
        return cluster

    @classmethod
    def named(cls, name: str, *, only_look: bool = False) -> Self:
        """The cluster `name`, which another process may have started. To start or change it takes its lock."""
        requirements.check(requirements.Level.CLUSTER)
        return cls(RunFolder.existing(name) if only_look else RunFolder.named(name), binaries.for_cluster())

    # What there is

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes, lost ones too."""
        return list(self._read()["nodes"])

    @property
    def lost_nodes(self) -> list[str]:
        """The names of the nodes that are lost."""
        return list(self._read()["lost"])

    @property
    def parts(self) -> list[str]:
        """The names that `restart` and its kin take."""
        return self._daemons.names()

    @property
    def namespace(self) -> network.Namespace:
        """The network namespace in which everything runs."""
        return self._namespace

    def part_pid(self, part: str) -> int | None:
        """The pid of a part while it lives."""
        return self._daemons.pid(part)

    # Commands inside

    def environment(self) -> dict[str, str]:
        """The environment of commands inside: KUBECONFIG, Helm's folders, PATH: the cluster's programs, then the product's."""
        helm = self._run.path / "helm"
        return {
            **os.environ,
            "PATH": self._programs.path(str(Path(sys.executable).parent)),  # kubectl-durable is there
            "KUBECONFIG": str(self.kubeconfig),
            **{f"HELM_{kind.upper()}_HOME": str(helm / kind) for kind in ("cache", "config", "data")},
        }

    def inside(self, argv: Sequence[str | Path]) -> list[str]:
        """The command that runs `argv` in the namespace."""
        return [*self._namespace.prefix, *map(str, argv)]

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        input: str | None = None,
        check: bool = True,
        timeout_seconds: float = 300,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end; BedError with its error output if it fails and `check` is set."""
        process = self.popen(
            argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            output, errors = process.communicate(None if input is None else input.encode(), timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            words = " ".join(map(str, argv))
            raise BedError(f"{words}: no end after {timeout_seconds:g} s: {errors.decode()[-2000:]}") from None
        done = subprocess.CompletedProcess(list(map(str, argv)), process.returncode, output.decode(), errors.decode())
        if check and done.returncode:
            words = " ".join(done.args)
            raise BedError(f"{words}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-4000:]}")
        return done

    def popen(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        cwd: str | Path | None = None,
        start_new_session: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a command inside; its pid is that of the command. Ends with the cluster, with all its children."""
        enter = [str(file) for file in cgroups.make(f"{self._run.id}/tests")]
        return subprocess.Popen(
            ["sh", "-c", ENTER, "sh", "/dev/null", *enter, "--", *self.inside(argv)],
            env={**self.environment(), **(env or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            start_new_session=start_new_session,
        )

    def helm(self, *args: str, input: str | None = None, check: bool = True, timeout_seconds: float = 300) -> str:
        """Run `helm ARGS` as cluster administrator and give back its standard output."""
        return self.run(["helm", *args], input=input, check=check, timeout_seconds=timeout_seconds).stdout

    # Volumes, images and containers

    def volume(self, claim: str, namespace: str = "default") -> Path:
        """The folder, on this machine, of the volume that a claim is bound to; BedError while it is not."""
        name = self.kubectl.get("pvc", claim, f"--namespace={namespace}")["spec"].get("volumeName")
        if not name:
            raise BedError(f"claim {namespace}/{claim} is not bound to a volume yet")
        return self._volumes / str(name)

    def load_image(self, archive: str | Path) -> None:
        """Import an image archive (OCI or Docker) into every node that is not lost."""
        nodes = [self._node(name) for name in self.nodes if name not in self.lost_nodes]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.load_image(Path(archive)), nodes))

    def container_pid(self, pod: str, container: str, namespace: str = "default") -> int:
        """The pid, on this machine, of the first process of a pod's running container."""
        found = self.kubectl.get("pod", pod, f"--namespace={namespace}")
        statuses = [s for kind in ("containerStatuses", "initContainerStatuses") for s in found["status"].get(kind, ())]
        for status in statuses:
            if status["name"] == container and status.get("containerID"):
                return self._node(found["spec"]["nodeName"]).container_pid(status["containerID"].rpartition("/")[2])
        names = ", ".join(status["name"] for status in statuses) or "none yet"
        raise BedError(f"pod {namespace}/{pod} has no started container {container}: there are {names}")

    def kill_container(
        self, pod: str, container: str, namespace: str = "default", sign: signal.Signals = signal.SIGKILL
    ) -> int:
        """Send a signal to the first process of a pod's container, and give back its pid on this machine."""
        pid = self.container_pid(pod, container, namespace)
        os.kill(pid, sign)
        return pid

    # Faults

    def lose_node(self, node: str, *, silent: bool = False) -> None:
        """Kill a node's daemons and pods at one instant. `silent`: its peers see no closed connection, just nothing."""
        self._node(node)
        if silent:
            self._namespace.cut(node)
        self._node(node).lose()
        self._write(lost=sorted({*self.lost_nodes, node}))

    def return_node(self, node: str, *, reboot: bool = False) -> None:
        """Start a lost node again; returns when it is Ready. `reboot`: what a reboot takes away is gone."""
        if reboot:
            self._node(node).forget()
        before = self._heartbeat(node)
        self._namespace.join(node)
        self._node(node).start_again()
        self._write(lost=[name for name in self.lost_nodes if name != node])
        # A node that was away for a moment only still looks Ready; it is back when its kubelet says so.
        wait_for(f"the kubelet of {node} reports", 60, lambda: self._heartbeat(node) != before)
        self.wait_usable(node)

    def restart(self, part: str, *, graceful: bool = False) -> None:
        """Kill a part and start it again; returns when it answers again. `graceful`: SIGTERM, not SIGKILL."""
        self.stop_part(part, graceful=graceful)
        self.start_part(part)

    def stop_part(self, part: str, *, graceful: bool = False) -> None:
        """Kill a part, and leave it away. The containers of a kubelet or containerd run on."""
        self._daemons.known(part)
        self._daemons.stop(part, signal.SIGTERM if graceful else signal.SIGKILL)

    def start_part(self, part: str) -> None:
        """Start a part that was stopped; returns when it answers."""
        self._daemons.known(part)
        for node in map(self._node, self.nodes):
            if part in node.daemons:
                node.start_part_again(part)
                return
        self._daemons.start_again(part)
        if self._daemons.pid("etcd") and self._daemons.pid("kube-apiserver"):
            self._wait_api()

    def wait_usable(self, *nodes: str, seconds: float = 60) -> None:
        """Wait until pods can be placed on these nodes (default: on all)."""
        wanted = set(nodes or self.nodes)
        wait_for(
            f"nodes {', '.join(sorted(wanted))} are usable", seconds, lambda: self.kubectl.usable_nodes() >= wanted
        )

    # Start and stop

    def up(self, *, nodes: int = NODES, loss_seconds: int = LOSS_SECONDS) -> None:
        """Start the cluster in its folder; what another start left there is removed first."""
        begun = time.monotonic()
        teardown.clean(self._run, self._daemons)
        try:
            self._up([f"n{number}" for number in range(1, nodes + 1)], loss_seconds)
        except BaseException:
            say(f"the cluster did not start; its logs are in {self.save_logs()}")
            self.stop()
            raise
        say(f"cluster ready after {time.monotonic() - begun:.1f} s: {nodes} nodes in namespace {self._namespace.name}")

    def keep(self) -> None:
        """Let the cluster go on without this process."""
        self._run.keep()
        self._run.release()

    def leave(self) -> None:
        """Let another process work on the cluster."""
        self._run.release()

    def save_logs(self) -> Path | None:
        """Copy the logs to where they outlive `stop`, and give back that folder."""
        return self._run.save_logs()

    def stop(self) -> None:
        """End everything and remove every trace."""
        teardown.clean(self._run, self._daemons)
        self._run.remove()

    def _up(self, names: list[str], loss_seconds: int) -> None:
        self._write(nodes=names, lost=[])
        self.logs_dir.mkdir()
        self._namespace.create(names)
        nodes = [self._node(name) for name in names]
        for node in nodes:
            node.start_containerd(self.tools_image)
        self._start_control_plane()
        with ThreadPoolExecutor() as pool:
            loads = [pool.submit(node.load_image, self._tools_archive) for node in nodes]
            self._wait_api()
            self._start_controllers(loss_seconds)
            for load in loads:
                load.result()
        for node in nodes:
            node.start_kubelet(self._authority, self.url, loss_seconds)
        self._start_services()
        self.kubectl("create", "--filename=-", input=volumes.make(self._volumes, names))
        self.wait_usable(*names)
        self.kubectl.wait_service_account("default")
        self._daemons.must_run()

    def _start_control_plane(self) -> None:
        self._authority.create()
        names = ",".join(f"DNS:{name}" for name in ("localhost", *SERVICE_NAMES))
        addresses = f"IP:127.0.0.1,IP:{network.GATEWAY},IP:{network.SERVICE_API}"
        self._authority.issue("server", "/CN=kube-apiserver", f"{names},{addresses}")
        self._client("admin", "/O=system:masters/CN=admin")
        kubelets = self._authority.issue("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
        start_storage_and_api(
            self._daemons,
            self._programs,
            self._authority,
            self._ends,
            "--bind-address=0.0.0.0",
            f"--service-cluster-ip-range={network.SERVICES}",
            f"--kubelet-client-certificate={kubelets.crt}",
            f"--kubelet-client-key={kubelets.key}",
            f"--kubelet-certificate-authority={self._authority.crt}",
            "--kubelet-preferred-address-types=InternalIP",  # names of nodes do not resolve
            cgroup=self._cgroup("control-plane"),
        )

    def _start_controllers(self, loss_seconds: int) -> None:
        start_controllers(
            self._daemons,
            self._programs,
            self._authority,
            self._client("kube-controller-manager", "/CN=system:kube-controller-manager"),
            "--bind-address=127.0.0.1",
            f"--node-monitor-grace-period={loss_seconds}s",
            "--node-monitor-period=1s",
            "--node-eviction-rate=1",
            cgroup=self._cgroup("control-plane"),
        )
        scheduler = self._client("kube-scheduler", "/CN=system:kube-scheduler")
        services.start_scheduler(self._daemons, self._programs, scheduler, self._cgroup("control-plane"))

    def _start_services(self) -> None:
        proxy = self._client("kube-proxy", "/CN=system:kube-proxy")
        services.start_proxy(self._daemons, self._programs, proxy, self._cgroup("control-plane"))
        services.start_name_server(self._daemons, self._programs, self.kubeconfig, self._cgroup("control-plane"))

    def _wait_api(self) -> None:
        def ready() -> bool:
            self._daemons.must_run("etcd", "kube-apiserver")
            return self.kubectl.ready()

        wait_for("the API server is ready", READY_SECONDS, ready)

    def _heartbeat(self, node: str) -> str:
        lease = self.kubectl.get("lease", node, "--namespace=kube-node-lease")
        return str(lease["spec"]["renewTime"])

    def _client(self, name: str, subject: str) -> Path:
        certificate = self._authority.issue(name, subject)
        return self._authority.kubeconfig(self._run.path / f"{name}.conf", self.url, certificate)

    def _cgroup(self, name: str) -> str:
        return f"{self._run.id}/{name}"

    def _node(self, name: str) -> Node:
        if name not in self.nodes:
            raise BedError(f"no node {name}: there are {', '.join(self.nodes) or 'none'}")
        return Node(name, self._run.id, self._daemons, self._programs)

    def _read(self) -> dict[str, list[str]]:
        empty: dict[str, list[str]] = {"nodes": [], "lost": []}
        return json.loads(self._state.read_text()) if self._state.exists() else empty

    def _write(self, **changes: list[str]) -> None:
        fresh = self._state.with_suffix(".new")
        fresh.write_text(json.dumps({**self._read(), **changes}))
        fresh.replace(self._state)
