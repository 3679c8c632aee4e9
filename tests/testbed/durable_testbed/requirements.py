"""What the test bed needs of a machine, what of it is missing, and how to get it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from durable_testbed import binaries, paths
from durable_testbed.errors import MissingError

INSTALL = paths.HERE / "install-packages.sh"
SYSTEM_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"))


class Level(Enum):
    """How much of the test bed is asked for; the value names the commands it takes from Debian packages."""

    CONTROL_PLANE = ("openssl",)
    CLUSTER = ("runc", "nft", "iptables", "conntrack", "ip", "nsenter", "openssl")
    IMAGES = (*CLUSTER, "buildah", "mmdebstrap")


def missing(level: Level) -> list[str]:
    """One line for each thing that is missing, with what to do about it."""
    return list(_missing(level))


def check(level: Level) -> None:
    """MissingError in one line, if this machine lacks something that `level` needs."""
    if lines := missing(level):
        raise MissingError("; ".join(lines))


def ensure_packages() -> None:
    """Install the Debian packages that are missing; MissingError with the command, where that can't be done from here."""
    done = subprocess.run([str(INSTALL)], stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise MissingError(done.stderr.strip()[-2000:])


def in_ci() -> bool:
    """Whether nothing may be skipped."""
    return os.environ.get("CI") == "true"


def _missing(level: Level) -> Iterator[str]:
    if sys.platform != "linux":
        yield f"the test bed needs Linux, this is {sys.platform}: use a Linux machine, or kind (kind-config.yaml)"
        return
    if commands := [command for command in level.value if not shutil.which(command, path=SYSTEM_PATH)]:
        install = os.path.relpath(INSTALL) if INSTALL.is_relative_to(Path.cwd()) else str(INSTALL)
        yield f"{', '.join(commands)} missing: run {install} as root"
    groups = (binaries.CONTROL_PLANE,) if level is Level.CONTROL_PLANE else binaries.CLUSTER
    given = level is Level.CONTROL_PLANE and os.environ.get("KUBEBUILDER_ASSETS")
    if not given and not all(map(binaries.built, groups)) and (problem := binaries.go_problem()):
        yield problem
    if level is not Level.CONTROL_PLANE and os.geteuid() != 0:
        yield "root is needed (namespaces, cgroups, mounts): run the tests as root"
