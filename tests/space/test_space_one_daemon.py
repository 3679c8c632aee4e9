"""One daemon per socket and per workspace: who is refused, what a killed daemon holds (nothing), what goes at an end."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from pathlib import Path

from durable_protocol.durable.space.v1 import space_pb2 as durable
from durable_space import identity, unix_sockets
from durable_space.testing import Client, LocalDaemon, until


def info(client: Client) -> durable.GetInfoResponse:
    response: durable.GetInfoResponse = client.call(client.space.GetInfo, durable.GetInfoRequest())
    return response


def run_beside(daemon: LocalDaemon, **changed: object) -> subprocess.CompletedProcess[str]:
    """A second daemon with the first one's flags but for those `changed`; one that starts is ended by the timeout."""
    words = daemon.command()
    for flag, value in changed.items():
        words[words.index(f"--{flag}") + 1] = str(value)
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)


def test_second_daemon_on_one_socket_is_refused_and_the_first_keeps_it(
    space: Client, daemon: LocalDaemon, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    second = run_beside(daemon, data=tmp_path / "data-2", workspace=tmp_path / "other")
    assert (second.returncode, second.stdout) == (2, "")
    assert f"process {daemon.announced['pid']} listens there" in second.stderr
    assert "name another path" in second.stderr
    assert not (tmp_path / "data-2").exists()
    assert info(daemon.client()).instance_id == info(space).instance_id


def test_second_daemon_on_one_workspace_is_refused_by_any_path_to_it(
    space: Client, daemon: LocalDaemon, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(daemon.workspace)
    own = {"data": tmp_path / "data-2", "listen": f"unix:{daemon.socket}2"}
    for path in (daemon.workspace, tmp_path / "link"):
        second = run_beside(daemon, workspace=path, **own)
        assert (second.returncode, second.stdout) == (2, "")
        assert f"another daemon (process {daemon.announced['pid']}) serves it: stop that one" in second.stderr
    assert space.run("on", "echo on").stdout == b"on\n"


def test_killed_daemon_holds_neither_socket_nor_workspace_whatever_its_commands_do(
    space: Client, daemon: LocalDaemon
) -> None:
    """A command runs on, has locked the folder, and nothing of it keeps the next daemon out."""
    space.start("on", "exec 9< .; flock 9; : > locked; sleep 60")
    until((daemon.workspace / "locked").exists)
    began = time.monotonic()
    daemon.restart()
    assert time.monotonic() - began < 10
    inode = daemon.socket.stat().st_ino
    assert daemon.restart().run("echo", "echo on").stdout == b"on\n"
    assert daemon.socket.stat().st_ino != inode
    assert [path.name for path in daemon.socket.parent.iterdir()] == [daemon.socket.name]


def test_socket_goes_with_its_daemon_but_not_with_one_that_lost_it(daemon: LocalDaemon) -> None:
    daemon.start()
    daemon.terminate()
    assert not daemon.socket.exists()
    daemon.start()
    daemon.socket.unlink()
    with socket.socket(socket.AF_UNIX) as others:
        others.bind(str(daemon.socket))
        assert daemon.terminate() == 0
        assert daemon.socket.is_socket()


def test_file_at_the_place_of_a_socket_is_left_alone(daemon: LocalDaemon) -> None:
    daemon.socket.write_text("mine")
    second = subprocess.run(daemon.command(), capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 2
    assert "no socket" in second.stderr
    assert daemon.socket.read_text() == "mine"
    daemon.socket.unlink()


def test_daemon_waits_for_a_predecessor_that_is_just_ending(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    before = socket.socket(socket.AF_UNIX)
    before.bind(path)
    before.listen()
    hold = identity.take_workspace(tmp_path)
    assert hold is not None
    threading.Timer(0.3, before.close).start()
    threading.Timer(0.3, hold.close).start()
    unix_sockets.make_way(path, "--listen")
    again = identity.take_workspace(tmp_path)
    assert again is not None
    again.close()


def test_process_id_is_told(space: Client, daemon: LocalDaemon) -> None:
    assert daemon.process is not None
    assert daemon.announced["pid"] == daemon.process.pid
    (line,) = [json.loads(line) for line in daemon.log.read_text().splitlines() if '"listening"' in line]
    assert line["pid"] == daemon.process.pid
    assert info(space).instance_id == line["instance"]
