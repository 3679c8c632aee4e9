"""What a Space's pod needs around the daemon: its keeper, the filler of the workspace, and the cgroup file protocol."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import grpc
import pytest
from click.testing import CliRunner

from durable_base import crash
from durable_base.errors import UsageError
from durable_space import procfs
from durable_space._record import read
from durable_space.cli import arguments, space
from durable_space.ending import cgroup
from durable_space.layout import record_file
from durable_space.seed import fill
from durable_space.testing import Client, LocalDaemon, until


class Supervised(LocalDaemon):
    def command(self) -> list[str]:
        words = super().command()
        return [*words[:3], "supervise", *words[3:]]


@pytest.fixture
def supervised(tmp_path: Path) -> object:
    made = Supervised(tmp_path, "--kill-mechanism", "subreaper")
    yield made
    made.stop()


def test_keeper_starts_a_dead_daemon_anew_and_passes_sigterm_on(supervised: Supervised) -> None:
    client = supervised.start()
    client.start("held", "until [ -e go ]; do sleep 0.05; done; echo on")
    daemon = int((supervised.data / "lock").read_text())
    assert supervised.process is not None
    assert daemon != supervised.process.pid
    os.kill(daemon, signal.SIGKILL)
    supervised.wait_ready()
    assert int((supervised.data / "lock").read_text()) != daemon
    client = supervised.client()
    assert client.state("held") == "running"
    (supervised.workspace / "go").touch()
    until(lambda: client.state("held") == "exited")
    assert supervised.terminate() == 0


def test_keeper_reaps_orphans(tmp_path: Path) -> None:
    """As process 1 of a namespace of its own; an orphan that nobody waits for must not stay as a zombie."""
    probe = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("no PID namespace can be made here")
    (tmp_path / "w").mkdir()
    inner = [sys.executable, "-m", "durable_space", "supervise", "--data", str(tmp_path / "d")]
    inner += ["--workspace", str(tmp_path / "w"), "--listen", f"unix:{tmp_path}/s", "--kill-mechanism", "subreaper"]
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *inner]
    keeper = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert keeper.stdout is not None
    try:
        assert json.loads(keeper.stdout.readline())["event"] == "listening"
        with grpc.insecure_channel(f"unix:{tmp_path}/s") as channel:
            client = Client(channel)
            client.run("1", "setsid sleep 60 > /dev/null 2>&1 &")
            zygote = int((tmp_path / "d" / "zygote").read_text().split()[0])
            shim = int(cast(dict[str, int], read(record_file(str(tmp_path / "d"), 1))[0].claim)["shim"])
            for pid in (zygote, shim):  # the zygote reaps its shims; without it they, and what they reaped, are orphans
                os.kill(_outer(keeper.pid, pid), signal.SIGKILL)
            until(lambda: _zombies(keeper.pid) == 0)
            client.advance(1)
            until(lambda: _zombies(keeper.pid) == 0)
        os.kill(_outer(keeper.pid, 1), signal.SIGTERM)
        assert keeper.wait(20) == 0
    finally:
        keeper.kill()  # and with it, all of its namespace
        keeper.wait()
        keeper.stdout.close()


def _zombies(keeper: int) -> int:
    processes = procfs.table()
    return sum(not processes[pid].alive for pid in procfs.descendants(processes, [keeper]))


def _outer(keeper: int, inner: int) -> int:
    """The id, out here, of the process that calls itself `inner` in the keeper's namespace."""
    for pid in procfs.descendants(procfs.table(), [keeper]):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # a shim that nobody had asked ended with the zygote
        ids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
        if ids[-1] == str(inner) and len(ids) > 2:
            return pid
    raise AssertionError(inner)


def test_keeper_does_not_insist_on_bad_flags(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        space, ["supervise", "--data", str(tmp_path / "d"), "--workspace", str(tmp_path / "none")]
    )
    assert result.exit_code == 2


def test_options_are_passed_on_as_they_came() -> None:
    options = {"data": Path("/d"), "listen": ("a", "b"), "insecure": True, "stop_commands": False, "http": None}
    assert arguments(options) == ["--data", "/d", "--listen", "a", "--listen", "b", "--insecure"]


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """As kubelet mounts a ConfigMap."""
    root = tmp_path / "volume"
    (root / "..2026" / "below").mkdir(parents=True)
    (root / "..2026" / "main.py").write_text("print()\n")
    (root / "..2026" / "below" / "data").write_text("x")
    (root / "..data").symlink_to("..2026")
    for name in ("main.py", "below"):
        (root / name).symlink_to(f"..data/{name}")
    return root


def contents(workspace: Path) -> dict[str, str]:
    return {
        str(path.relative_to(workspace)): path.read_text()
        for path in sorted(workspace.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def test_empty_workspace_is_filled_once_with_plain_files(tmp_path: Path, volume: Path) -> None:
    workspace, data = tmp_path / "w", tmp_path / "d"
    workspace.mkdir()
    (workspace / "lost+found").mkdir()
    words = ["seed", "--from", str(volume), "--workspace", str(workspace), "--data", str(data)]
    result = CliRunner().invoke(space, words)
    assert (result.exit_code, result.output) == (0, "2 files copied\n")
    assert contents(workspace) == {"main.py": "print()\n", "below/data": "x"}
    assert not (workspace / "main.py").is_symlink()
    (workspace / "main.py").unlink()
    (workspace / "below" / "data").unlink()
    (workspace / "below").rmdir()
    assert fill(volume, workspace, data) is None, "the session emptied it: that is its business"
    assert contents(workspace) == {}


def test_workspace_that_holds_something_is_left_alone(tmp_path: Path, volume: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    (workspace / "own").write_text("own")
    assert fill(volume, workspace, None) is None
    assert contents(workspace) == {"own": "own"}


def test_filler_killed_half_way_begins_again(tmp_path: Path, volume: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    words = [sys.executable, "-m", "durable_space", "seed", "--from", str(volume), "--workspace", str(workspace)]
    killed = subprocess.run(words, env={**os.environ, crash.VARIABLE: "seed.copied"}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert fill(volume, workspace, None) == 2
    assert sorted(os.listdir(workspace)) == ["below", "main.py"]


def test_filler_names_the_folder_that_lacks(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--from"):
        fill(tmp_path / "none", tmp_path, None)


def test_cgroup_file_protocol(tmp_path: Path) -> None:
    """On a plain folder: what is written where, and what is read as empty."""
    groups = cgroup.CgroupTree(tmp_path, "i" * 32)
    folder = groups.folder / "a"
    folder.mkdir(parents=True)
    assert not groups.populated("a")
    (folder / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert groups.populated("a")
    groups.kill("a")
    assert (folder / "cgroup.kill").read_text() == "1"
    child = subprocess.Popen(["sleep", "60"])
    (folder / "cgroup.procs").write_text(f"0\n{os.getpid()}\n{child.pid}\n")
    groups.kill_but("a", os.getpid(), lambda: True)
    assert child.poll() is None
    groups.kill_but("a", os.getpid(), lambda: False)
    assert child.wait() == -signal.SIGKILL
    assert (folder / "cgroup.freeze").read_text() == "0"
    (folder / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert not groups.populated("a")
    groups.remove("b")
    assert not groups.populated("b")
    groups.kill_but("b", 1, lambda: False)


def test_groups_in_which_nothing_lives_are_removed_whosever_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a daemon whose data is gone: its folder has no process. Of another that runs: has one. Just made: perhaps soon."""
    own = cgroup.CgroupTree(tmp_path, "i" * 32)
    dead, live, alien = (tmp_path / name for name in (f"{cgroup.PREFIX}dead", f"{cgroup.PREFIX}live", "system.slice"))
    for folder in (own.folder, dead, live, alien):
        (folder / "a" / "made by a command").mkdir(parents=True)
    (live / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    own.sweep_strangers()
    assert dead.exists()
    monkeypatch.setattr(cgroup, "DEAD_SECONDS", -1.0)
    own.sweep_strangers()
    assert (dead.exists(), live.exists(), alien.exists(), own.folder.exists()) == (False, True, True, True)
    own.close()
    assert not own.folder.exists()


@pytest.mark.skipif(cgroup.find_root() is None, reason="no cgroup v2 tree is writable here")
def test_killed_daemon_leaves_groups_that_its_successor_removes(tmp_path: Path) -> None:
    daemon = LocalDaemon(tmp_path, "--kill-mechanism", "cgroup2")
    daemon.start().start("held", "sleep 60")
    root = cast(Path, cgroup.find_root())
    folder = root / f"{cgroup.PREFIX}{daemon.announced['instance'][:16]}"
    os.kill(daemon.zygote, signal.SIGKILL)
    daemon.kill()
    assert folder.exists()
    daemon.start()
    daemon.stop()
    assert not folder.exists()


def test_stat_line_with_a_hostile_name() -> None:
    fields = "7 (a) R 1 (b) S 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0"
    process = procfs.parse_stat(fields)
    assert (process.pid, process.parent, process.session, process.start, process.state) == (7, 3, 5, 4242, "S")
