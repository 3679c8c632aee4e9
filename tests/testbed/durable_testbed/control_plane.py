"""The control plane: etcd, API server, controller manager; alone on loopback, or as part of a cluster.

`ControlPlane` needs neither root nor a namespace of its own, so a test's own process can talk to it. It has no node: a
pod stays Pending unless a test plays the kubelet, and Node objects that a test makes stay as they were made, because
the controller that would find them silent is off.
"""

import contextlib
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from durable_testbed import binaries, requirements, teardown
from durable_testbed.errors import BedError
from durable_testbed.kubectl import Kubectl
from durable_testbed.pki import Authority
from durable_testbed.process import Daemons, say, wait_for
from durable_testbed.run_folder import RunFolder

READY_SECONDS = 90
STARTS_MAX = 3
SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
# At its default of 20 calls a second the controller manager takes 4 s to start its controllers.
FAST_CLIENT = ("--kube-api-qps=200", "--kube-api-burst=400")


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Where the parts of a control plane listen."""

    address: str
    api_port: int = 6443
    etcd_port: int = 2379
    etcd_peer_port: int = 2380

    @property
    def url(self) -> str:
        """The API server's address."""
        return f"https://{self.address}:{self.api_port}"


def start_storage_and_api(
    daemons: Daemons,
    programs: binaries.Binaries,
    authority: Authority,
    ends: Endpoints,
    *options: str,
    cgroup: str = "",
) -> None:
    """Start etcd and an API server; `options` are more flags of the latter."""
    folder, pki = daemons.folder, authority.folder
    etcd, peer = f"http://127.0.0.1:{ends.etcd_port}", f"http://127.0.0.1:{ends.etcd_peer_port}"
    daemons.start(
        "etcd",
        programs["etcd"],
        f"--data-dir={folder / 'etcd'}",
        "--unsafe-no-fsync",  # the machine does not lose power between two tests
        f"--listen-client-urls={etcd}",
        f"--advertise-client-urls={etcd}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        cgroup=cgroup,
    )
    daemons.start(
        "kube-apiserver",
        programs["kube-apiserver"],
        f"--etcd-servers={etcd}",
        f"--secure-port={ends.api_port}",
        f"--advertise-address={ends.address}",
        f"--tls-cert-file={pki / 'server.crt'}",
        f"--tls-private-key-file={pki / 'server.key'}",
        f"--client-ca-file={authority.crt}",
        f"--service-account-key-file={authority.service_account_key}",
        f"--service-account-signing-key-file={authority.service_account_key}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        *options,
        cgroup=cgroup,
    )


def start_controllers(
    daemons: Daemons,
    programs: binaries.Binaries,
    authority: Authority,
    kubeconfig: Path,
    *options: str,
    cgroup: str = "",
) -> None:
    """Start the controller manager; `options` are more flags of it."""
    daemons.start(
        "kube-controller-manager",
        programs["kube-controller-manager"],
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={authority.service_account_key}",
        f"--root-ca-file={authority.crt}",
        *FAST_CLIENT,
        *options,
        cgroup=cgroup,
    )


class ControlPlane:
    """etcd, API server and controller manager on loopback, as long as the process that started them wants.

    `kubeconfig` has the rights of `system:masters`, `kubectl` is called with kubectl's arguments, and `url` is the API
    server's address.
    """

    def __init__(self, run: RunFolder, programs: binaries.Binaries):
        self._run = run
        self._programs = programs
        self._daemons = Daemons(run.path, path=programs.path())
        self._authority = Authority(run.path / "pki")
        self.kubeconfig = run.path / "admin.conf"
        self.kubectl = Kubectl(programs["kubectl"], self.kubeconfig)
        self.logs_dir = self._daemons.logs
        self.url = ""

    @classmethod
    def start(cls) -> Self:
        """Start a control plane; MissingError if the machine lacks something for it."""
        requirements.check(requirements.Level.CONTROL_PLANE)
        teardown.clean_abandoned()
        plane = cls(RunFolder.new("plane"), binaries.for_control_plane())
        try:
            plane._up()
        except BaseException:
            say(f"the control plane did not start; its logs are in {plane._run.save_logs()}")
            plane.stop()
            raise
        return plane

    @property
    def parts(self) -> list[str]:
        """The names that `restart` and its kin take."""
        return self._daemons.names()

    def restart(self, part: str, *, graceful: bool = False) -> None:
        """Kill a part and start it again; returns when the API answers again. `graceful`: SIGTERM, not SIGKILL."""
        self.stop_part(part, graceful=graceful)
        self.start_part(part)

    def stop_part(self, part: str, *, graceful: bool = False) -> None:
        """Kill a part, and leave it away."""
        self._daemons.known(part)
        self._daemons.stop(part, signal.SIGTERM if graceful else signal.SIGKILL)

    def start_part(self, part: str) -> None:
        """Start a part that was stopped; returns when the API answers again."""
        self._daemons.start_again(part)
        if self._daemons.pid("etcd") and self._daemons.pid("kube-apiserver"):
            self._wait_ready()

    def save_logs(self) -> Path | None:
        """Copy the logs to where they outlive `stop`, and give back that folder."""
        return self._run.save_logs()

    def stop(self) -> None:
        """End everything and remove every trace."""
        teardown.clean(self._run, self._daemons)
        self._run.remove()

    def _up(self) -> None:
        begun = time.monotonic()
        self._authority.create()
        names = ",".join(f"DNS:{name}" for name in ("localhost", *SERVICE_NAMES))
        self._authority.issue("server", "/CN=kube-apiserver", f"{names},IP:127.0.0.1")
        admin = self._authority.issue("admin", "/O=system:masters/CN=admin")
        for attempt in range(1, STARTS_MAX + 1):
            with _free_ports(3) as ports:
                ends = Endpoints(address="127.0.0.1", api_port=ports[0], etcd_port=ports[1], etcd_peer_port=ports[2])
            self.url = ends.url
            self._authority.kubeconfig(self.kubeconfig, ends.url, admin)
            # Loopback can't be the endpoint of a Service, so the API server must not try to publish itself.
            options = (
                "--bind-address=127.0.0.1",
                "--endpoint-reconciler-type=none",
                "--service-cluster-ip-range=10.0.0.0/24",
            )
            start_storage_and_api(self._daemons, self._programs, self._authority, ends, *options)
            try:
                self._wait_ready()
                break
            except BedError as problem:
                if "address already in use" not in str(problem) or attempt == STARTS_MAX:
                    raise
                say("a port was taken between choosing and using it; trying others")
                for part in self.parts:
                    self._daemons.stop(part, signal.SIGKILL)
                shutil.rmtree(self._run.path / "etcd", ignore_errors=True)
        start_controllers(
            self._daemons,
            self._programs,
            self._authority,
            self.kubeconfig,
            "--secure-port=0",
            "--controllers=*,-node-lifecycle-controller",
        )
        self.kubectl.wait_service_account("default")
        say(f"control plane ready after {time.monotonic() - begun:.1f} s: KUBECONFIG={self.kubeconfig}")

    def _wait_ready(self) -> None:
        def ready() -> bool:
            self._daemons.must_run("etcd", "kube-apiserver")
            return self.kubectl.ready()

        wait_for("the API server is ready", READY_SECONDS, ready)


@contextlib.contextmanager
def _free_ports(count: int) -> Iterator[list[int]]:
    """Ports of loopback that nobody has, all different; held only until the block ends."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        yield [each.getsockname()[1] for each in sockets]
