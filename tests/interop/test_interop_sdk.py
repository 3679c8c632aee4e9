"""Cua's own SDK (package `cua`) on our daemon, as on Cua's: commands, processes, files.

In a process of its own, so that neither its native library nor its protobufs meet ours.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "support" / "cua_sdk_program.py"
EXPECTED = {
    "protocol": 1,
    "ledger": True,
    "health": True,
    "run": [0, "hello\n", ""],
    "sh": [3, "out\n", "err\n"],
    "environment and folder": "b\n$W\n",
    "timeout": True,
    "3,000,000 bytes": 3_000_000,
    "once, 1": "ran\n",
    "once, 2": "ran\n",
    "once": "x\n",
    "unknown program": [False, None, True],
    "tag": "sdk-cat",
    "cat": [0, "one\ntwo\n"],
    "events": ["STDOUT"],
    "listed": True,
    "same process": True,
    "signal": "term",
    "kill": "kill",
    "upload": 7,
    "download": "content",
    "large, there and back": True,
    "files, there and back": True,
    "stat": ["file", "file", 7],
    "mode": "0o600",
    "list": [["inner", "directory"], ["moved", "file"]],
    "removed": "NotFound",
    "create where one is": "Env",
    "wrong token": "Unauthenticated",
}


def use(peer, cua_folder, home):
    """What the program saw."""
    words = [sys.executable, str(PROGRAM), f"http://{peer.address}", peer.token, str(peer.workspace)]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "DO_NOT_TRACK": "1",
        "CUA_TELEMETRY": "0",
        "PYTHONPATH": str(cua_folder),
    }
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_sdk_works_on_our_daemon(ours, cua_folder, tmp_path):
    assert use(ours, cua_folder, tmp_path) == EXPECTED


def test_sdk_sees_the_same_on_its_own_daemon(theirs, cua_folder, tmp_path):
    """So that what is expected above is the SDK's, and not what ours happens to do."""
    assert use(theirs, cua_folder, tmp_path) == EXPECTED
