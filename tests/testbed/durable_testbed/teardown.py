"""End a run and remove all it left, also after a start that failed or was killed half way.

Nothing here relies on what the starter had in memory: daemons are found by their records and by their cgroup, and what
lies outside the run folder by the run's id.
"""

import contextlib
import ctypes
import os
import re
import signal
from pathlib import Path

from durable_testbed import cgroups
from durable_testbed.errors import BedError
from durable_testbed.network import Namespace
from durable_testbed.process import Daemons, say
from durable_testbed.run_folder import RunFolder

MNT_DETACH = 2
# Two places outside the run folder that no setting moves: the kubelet's links to its logs, and the results of CNI.
LOG_LINKS = Path("/var/log/containers")
CNI_RESULTS = Path("/var/lib/cni/results")


def clean_abandoned() -> None:
    """Remove the runs whose processes were killed."""
    for run in RunFolder.abandoned():
        say(f"removing what a killed run left in {run.path}")
        clean(run, Daemons(run.path))
        run.remove()


def clean(run: RunFolder, daemons: Daemons) -> None:
    """End everything of a run, and empty its folder."""
    # Kubelets go first: they would start again what ends.
    for name in sorted(daemons.names(), key=lambda name: not name.startswith("kubelet-")):
        daemons.stop(name, signal.SIGKILL)
    if os.geteuid() == 0:
        cgroups.kill(run.id)
        for home in run.path.glob("n[0-9]"):
            remove_shim_sockets(home)
        unmount_below(run.path)
        cgroups.remove(run.id)
        Namespace(run.id).remove()
        _remove_outside(run.path)
    daemons.reap()
    run.empty()


def remove_shim_sockets(home: Path) -> None:
    """A killed shim leaves its socket in /run/containerd/s; the bundle of its container has the address."""
    for file in home.glob("state/io.containerd.runtime.v2.task/*/*/*"):
        if file.name in ("address", "bootstrap.json"):
            for socket in re.findall(r"unix://(/run/containerd/s/[0-9a-f]+)", file.read_text()):
                Path(socket).unlink(missing_ok=True)


def unmount_below(folder: Path) -> None:
    """Unmount all that is mounted at or below `folder`."""
    libc = ctypes.CDLL(None, use_errno=True)
    top = os.path.realpath(folder)
    for _ in range(5):  # a mount may hide others
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        points = [line.split()[4].encode().decode("unicode_escape") for line in mounts]
        below = [point for point in points if point == top or point.startswith(top + "/")]
        if not below:
            return
        for point in reversed(below):
            libc.umount2(point.encode(), MNT_DETACH)
    raise BedError(f"mounts stay below {top}")


def _remove_outside(folder: Path) -> None:
    for link in LOG_LINKS.glob("*.log"):
        if link.is_symlink() and os.readlink(link).startswith(f"{folder}/"):
            link.unlink(missing_ok=True)
    for result in CNI_RESULTS.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            if f'"{folder}/' in result.read_text(errors="replace"):
                result.unlink()
