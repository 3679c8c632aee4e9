"""The programs of a cluster, built from Go modules and kept in the cache.

The module files in `modules/` name all versions and hashes, so a build needs the Go module proxy and nothing else. A
group of programs is built at once, published whole under the hash of what goes into it, and found there by every later
run. Building from source is slower than fetching release archives, but needs no download site, and works on any
architecture.
"""

import hashlib
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from durable_testbed import paths
from durable_testbed.errors import BedError, MissingError
from durable_testbed.process import say

GO_VERSION_MIN = (1, 26)
BUILD_SECONDS_MAX = 3600
KUBEBUILDER_ASSETS = (
    "etcd",
    "kube-apiserver",
    "kubectl",
)  # what such a folder holds; the controller manager may be there


@dataclass(frozen=True)
class Group:
    """Programs that are built together, from one module."""

    name: str
    module: str
    packages: Mapping[str, str]  # program -> Go package
    duration: str  # of a cold build on two cores

    def key(self) -> str:
        """The hash of all that decides what a build gives."""
        digest = hashlib.sha256(repr((sorted(self.packages.items()), self.flags(), platform.machine())).encode())
        for file in sorted((paths.MODULES / self.module).iterdir()):
            digest.update(f"{file.name}\0".encode() + file.read_bytes())
        return digest.hexdigest()[:16]

    def folder(self) -> Path:
        """Where the group's programs are, or will be, in the cache."""
        return paths.cache() / self.key() / self.name

    def flags(self) -> list[str]:
        """The flags of `go build`. Without the version stamps kubectl and Helm refuse the server (`v0.0.0-master`)."""
        linker = "-s -w"
        if stamp := re.search(
            r"k8s\.io/kubernetes (v(\d+)\.(\d+)\S*)", (paths.MODULES / self.module / "go.mod").read_text()
        ):
            version = "k8s.io/component-base/version"
            linker += (
                f" -X {version}.gitVersion={stamp[1]} -X {version}.gitMajor={stamp[2]} -X {version}.gitMinor={stamp[3]}"
            )
        return ["-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", linker]


_KUBERNETES = "k8s.io/kubernetes/cmd"
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_CNI = "github.com/containernetworking/plugins/plugins"

TOOLS = Group("tools", "tools", {"tools": "."}, "5 s")
CONTROL_PLANE = Group(
    "control-plane",
    "kubernetes",
    {
        "etcd": "go.etcd.io/etcd/server/v3",
        **{name: f"{_KUBERNETES}/{name}" for name in ("kube-apiserver", "kube-controller-manager", "kubectl")},
    },
    "4 min",
)
KUBERNETES_NODE = Group(
    "kubernetes-node",
    "kubernetes",
    {name: f"{_KUBERNETES}/{name}" for name in ("kube-proxy", "kube-scheduler", "kubelet")},
    "90 s",
)
NODE = Group(
    "node",
    "node",
    {
        **{name: f"{_CONTAINERD}/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
        "bridge": f"{_CNI}/main/bridge",
        "host-local": f"{_CNI}/ipam/host-local",
        "loopback": f"{_CNI}/main/loopback",
        "portmap": f"{_CNI}/meta/portmap",
    },
    "1 min",
)
COREDNS = Group("coredns", "coredns", {"coredns": "github.com/coredns/coredns"}, "90 s")
HELM = Group("helm", "helm", {"helm": "helm.sh/helm/v4/cmd/helm"}, "100 s")

CLUSTER = (CONTROL_PLANE, KUBERNETES_NODE, NODE, COREDNS, HELM, TOOLS)


class Binaries:
    """Programs that are there, by name."""

    def __init__(self, found: Mapping[str, Path]):
        self._found = dict(found)

    def __getitem__(self, name: str) -> Path:
        return self._found[name]

    def folders(self) -> list[str]:
        """Where these programs are."""
        return list(dict.fromkeys(str(file.parent) for file in self._found.values()))

    def path(self, *more: str) -> str:
        """A search path that finds these programs first, then those in the folders `more`, then those of the system."""
        system = os.environ.get("PATH", os.defpath).split(os.pathsep)
        return os.pathsep.join(
            dict.fromkeys([*self.folders(), *more, *system, "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
        )


def for_cluster() -> Binaries:
    """All programs of a cluster; builds what is missing."""
    return _of(*CLUSTER)


def for_control_plane() -> Binaries:
    """The programs of a control plane; those in the folder $KUBEBUILDER_ASSETS come first, the others are built."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    if not assets:
        return _of(CONTROL_PLANE)
    found = {name: Path(assets, name) for name in CONTROL_PLANE.packages if Path(assets, name).exists()}
    if absent := set(KUBEBUILDER_ASSETS) - set(found):
        raise MissingError(
            f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(sorted(absent))}: unset it to have them built"
        )
    built = {} if set(CONTROL_PLANE.packages) == set(found) else dict(_of(CONTROL_PLANE)._found)
    return Binaries({**built, **found})


def built(group: Group) -> bool:
    """Whether the group is in the cache."""
    return group.folder().is_dir()


def ensure(group: Group) -> Path:
    """The group's folder; builds it if it is not there."""
    target = group.folder()
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with paths.locked(target.parent / f"{group.name}.lock", f"the binaries {group.name}"):
            if not target.is_dir():
                with paths.published(target) as fresh:
                    _build(group, fresh)
    return target


def go_problem() -> str | None:
    """What is wrong with this machine's Go, None if it will do."""
    wanted = ".".join(map(str, GO_VERSION_MIN))
    try:
        version = subprocess.run(
            ["go", "env", "GOVERSION"], capture_output=True, text=True, cwd=paths.MODULES / "tools"
        )
    except FileNotFoundError:
        return f"Go {wanted} or newer is missing: install it, it builds the cluster's programs"
    found = re.match(r"go(\d+)\.(\d+)", version.stdout)
    if not found or (int(found[1]), int(found[2])) < GO_VERSION_MIN:
        return f"Go {wanted} or newer is needed, found {version.stdout.strip() or version.stderr.strip()[-200:]}: update it"
    return None


def _of(*groups: Group) -> Binaries:
    return Binaries({name: ensure(group) / name for group in groups for name in group.packages})


def _build(group: Group, folder: Path) -> None:
    if problem := go_problem():
        raise MissingError(problem)
    say(f"building {', '.join(sorted(group.packages))} (once per machine; about {group.duration} on two cores)")
    begun = time.monotonic()
    process = subprocess.Popen(
        ["go", "build", *group.flags(), "-o", f"{folder}/", *group.packages.values()],
        cwd=paths.MODULES / group.module,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        code, errors = _wait(process, group, begun)
    except BaseException:
        process.kill()
        process.wait()
        raise
    if code:
        raise BedError(f"go build of {group.name} failed (exit {code}):\n{errors[-3000:]}")
    if (etcd := folder / "server").exists():  # a program is named by the last word of its package's path
        etcd.rename(folder / "etcd")
    if absent := [name for name in group.packages if not (folder / name).exists()]:
        raise BedError(f"go build of {group.name} gave no {', '.join(absent)}")
    say(f"built {group.name} in {time.monotonic() - begun:.0f} s")


def _wait(process: subprocess.Popen[str], group: Group, begun: float) -> tuple[int, str]:
    while True:
        try:
            _, errors = process.communicate(timeout=60)
            return process.returncode, errors
        except subprocess.TimeoutExpired:
            elapsed = time.monotonic() - begun
            if elapsed > BUILD_SECONDS_MAX:
                raise BedError(f"go build of {group.name}: no end after {elapsed:.0f} s") from None
            say(f"still building {group.name} ({elapsed:.0f} s)")
