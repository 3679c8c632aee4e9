"""One node: a containerd and a kubelet of its own, in one cgroup tree, with all their state in one folder.

The nodes of a cluster share the network namespace and differ by address. Every path is set to lie below the run folder,
so that nodes neither meet each other nor what else runs on the machine.
"""

import json
import shutil
import signal
import socket
from pathlib import Path

from durable_testbed import cgroups, network, teardown
from durable_testbed.binaries import Binaries
from durable_testbed.errors import BedError
from durable_testbed.pki import Authority
from durable_testbed.process import Daemons, call, wait_for
from durable_testbed.requirements import SYSTEM_PATH

ANSWER_SECONDS = 30
IN_MEMORY_BYTES_MIN = 8 << 30
CONTAINERD = """version = 3
root = "{images}"
state = "{home}/state"
[grpc]
  address = "{home}/c.sock"
[ttrpc]
  address = "{home}/c.ttrpc"
[plugins.'io.containerd.nri.v1.nri']
  disable = true  # all containerds of a machine would share one socket
[plugins.'io.containerd.internal.v1.opt']
  path = "{home}/opt"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{sandbox_image}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true  # works without CAP_SYS_RESOURCE
  disable_apparmor = true
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{cni_programs}"]
  conf_dir = "{home}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  runtime_path = "{shim}"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{runc}"
  Root = "{home}/state/runc"
  SystemdCgroup = false
"""


class Node:
    """A node by name (`n1`, `n2`, ...); its daemons are `containerd-NAME` and `kubelet-NAME`."""

    def __init__(self, name: str, run_id: str, daemons: Daemons, programs: Binaries):
        self.name = name
        self.address = network.node_address(name)
        self.home = daemons.folder / name
        self._cgroup = f"{run_id}/{name}"
        self._daemons = daemons
        self._programs = programs
        self._socket = self.home / "c.sock"
        self._images = daemons.folder / f"images-{name}"  # beside what `forget` unmounts: images outlive a reboot

    @property
    def daemons(self) -> tuple[str, str]:
        """The names of the node's daemons, in the order in which they start."""
        return f"containerd-{self.name}", f"kubelet-{self.name}"

    def start_containerd(self, sandbox_image: str) -> None:
        """Start containerd, which also brings up the network of pods."""
        (self.home / "cni").mkdir(parents=True)
        (self.home / "cni" / "10-pods.conflist").write_text(json.dumps(self._pod_network()))
        self._images.mkdir()
        if _memory_available() > IN_MEMORY_BYTES_MIN:
            # Unpacked images, and what containers write outside their volumes. On a disk that others use too, importing
            # the product's images was seen to take 20 to 30 s instead of 6 s.
            call("mount", "-t", "tmpfs", "-o", "mode=711", "tmpfs", self._images)
        config = self.home / "containerd.toml"
        config.write_text(
            CONTAINERD.format(
                home=self.home,
                images=self._images,
                sandbox_image=sandbox_image,
                cni_programs=self._programs["bridge"].parent,
                shim=self._programs["containerd-shim-runc-v2"],
                runc=shutil.which("runc", path=SYSTEM_PATH),
            )
        )
        containerd, _ = self.daemons
        self._daemons.start(
            containerd, self._programs["containerd"], "--config", config, cgroup=f"{self._cgroup}/system"
        )

    def wait_containerd(self) -> None:
        """Wait until containerd takes connections: a kubelet that finds nobody there exits at once.

        Neither its socket's file (a killed one leaves it behind) nor `ctr version` (prints its own) tells.
        """
        containerd, _ = self.daemons

        def answers() -> bool:
            self._daemons.must_run(containerd)
            with socket.socket(socket.AF_UNIX) as client:
                return client.connect_ex(str(self._socket)) == 0

        wait_for(f"{containerd} answers", ANSWER_SECONDS, answers)

    def start_kubelet(self, authority: Authority, server: str, loss_seconds: int) -> None:
        """Start the kubelet; its node counts as lost after `loss_seconds` of silence."""
        cgroups.make(self._cgroup)
        names = f"IP:{self.address},DNS:{self.name}"
        certificate = authority.issue(f"kubelet-{self.name}", f"/O=system:nodes/CN=system:node:{self.name}", names)
        kubeconfig = authority.kubeconfig(self.home / "kubelet.conf", server, certificate)
        (self.home / "resolv.conf").write_text(f"nameserver {network.GATEWAY}\n")
        config = self.home / "kubelet.yaml"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "kubelet.config.k8s.io/v1beta1",
                    "kind": "KubeletConfiguration",
                    "address": self.address,
                    "healthzBindAddress": self.address,
                    "containerRuntimeEndpoint": f"unix://{self._socket}",
                    "tlsCertFile": str(certificate.crt),
                    "tlsPrivateKeyFile": str(certificate.key),
                    "authentication": {
                        "anonymous": {"enabled": False},
                        "webhook": {"enabled": True},
                        "x509": {"clientCAFile": str(authority.crt)},
                    },
                    "authorization": {"mode": "Webhook"},
                    "clusterDomain": "cluster.local",
                    "clusterDNS": [network.GATEWAY],
                    "resolvConf": str(self.home / "resolv.conf"),
                    "cgroupDriver": "cgroupfs",
                    "cgroupRoot": f"/{self._cgroup}",
                    "failCgroupV1": False,
                    "failSwapOn": False,
                    "oomScoreAdj": 0,  # less needs CAP_SYS_RESOURCE
                    "podPidsLimit": 1024,
                    "makeIPTablesUtilChains": False,
                    "imageGCHighThresholdPercent": 100,
                    "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
                    "kubeAPIQPS": 200,
                    "kubeAPIBurst": 400,
                    "nodeStatusUpdateFrequency": f"{max(1, loss_seconds // 4)}s",
                    "nodeLeaseDurationSeconds": loss_seconds,
                    "podLogsDir": str(self.home / "podlogs"),
                    "volumePluginDir": str(self.home / "volumeplugins"),
                }
            )
        )
        _, kubelet = self.daemons
        self._daemons.start(
            kubelet,
            self._programs["kubelet"],
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--root-dir={self.home / 'kubelet'}",
            f"--cert-dir={self.home / 'kubelet-pki'}",
            cgroup=f"{self._cgroup}/system",
        )

    def ctr(self, *args: str | Path) -> str:
        """Run `ctr ARGS` on the node's containerd, in the namespace of the kubelet's containers."""
        return call(self._programs["ctr"], f"--address={self._socket}", "--namespace=k8s.io", *args)

    def load_image(self, archive: Path) -> None:
        """Import an image archive."""
        self.wait_containerd()
        self.ctr("images", "import", "--local", archive)

    def container_pid(self, container_id: str) -> int:
        """The pid, on the machine, of a container's first process."""
        for line in self.ctr("tasks", "list").splitlines():
            if line.split()[:1] == [container_id]:
                return int(line.split()[1])
        raise BedError(f"container {container_id} does not run on node {self.name}")

    def lose(self) -> None:
        """SIGKILL all of the node, daemons and containers, at one instant."""
        cgroups.kill(self._cgroup)
        # Now, while the bundles still tell where they are: containerd removes those when it is back, but no socket.
        teardown.remove_shim_sockets(self.home)

    def forget(self) -> None:
        """Remove what a reboot would: mounts, network namespaces, the state that lies in memory."""
        teardown.unmount_below(self.home)
        for name in ("state", "ipam", "c.sock", "c.ttrpc"):
            path = self.home / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        cgroups.remove(self._cgroup)

    def start_again(self) -> None:
        """Start the daemons of a node that was lost, on what it has on disk."""
        cgroups.make(self._cgroup)
        for name in self.daemons:
            self.start_part_again(name)

    def start_part_again(self, name: str) -> None:
        """Start one of the node's daemons again."""
        containerd, kubelet = self.daemons
        if name == kubelet:
            self.wait_containerd()
        self._daemons.start_again(name)
        if name == containerd:
            self.wait_containerd()

    def stop_part(self, name: str, sign: signal.Signals) -> None:
        """End one of the node's daemons; its containers run on."""
        self._daemons.stop(name, sign)

    def _pod_network(self) -> object:
        base = network.pod_range(self.name)
        addresses = {
            "type": "host-local",
            "dataDir": str(self.home / "ipam"),
            "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [
                [
                    {
                        "subnet": network.RANGE,
                        "rangeStart": f"{base}.1",
                        "rangeEnd": f"{base}.254",
                        "gateway": network.GATEWAY,
                    }
                ]
            ],
        }
        bridge = {"type": "bridge", "bridge": network.BRIDGE, "isGateway": True, "ipMasq": False, "hairpinMode": True}
        # portmap stands here for pods with a hostPort
        plugins = [{**bridge, "ipam": addresses}, {"type": "portmap", "capabilities": {"portMappings": True}}]
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}


def _memory_available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
