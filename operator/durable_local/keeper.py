"""The parent of one child process: it outlives the coordinator, and writes down how the child ended.

Run as `python -I -S keeper.py FOLDER UID COMMAND...`, standard library only, with the child's environment and folder as its own.

Guarantees, against SIGKILL of coordinator, keeper or child at any instruction:
* at most one child is ever started in FOLDER: `claim` is linked into place, and the second keeper finds it there (exit 3);
* `lock` is held exactly as long as the keeper lives: the lock tells life, a pid alone tells nothing (pids come again);
* `child` (pid and start time) is there before the child's first instruction, `exit` before the lock is let go;
* the child never outlives the keeper (parent-death signal), so a free lock without `exit` means: gone, how is unknown.
None of it survives power loss, and need not: records name the boot that they are of.
Not chosen: a pipe to the coordinator (its death would break it), and a pid file judged by its age.
"""

import ctypes
import fcntl
import json
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
ALREADY_CLAIMED = 3
EXEC_FAILED = 127
_FOR_THE_CHILD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def start_time(pid: int) -> int:
    """Clock ticks after boot at which `pid` began. With the boot id it names a process for ever. OSError: there is none."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _put(name: str, record: dict[str, object], *, exclusive: bool = False) -> None:
    """A reader sees the whole record or none. Raise FileExistsError if `exclusive` and there is one."""
    temporary = f".{name}.{os.getpid()}"
    with open(temporary, "w") as file:
        json.dump(record, file)
    if exclusive:
        try:
            os.link(temporary, name)
        finally:
            os.unlink(temporary)
    else:
        os.rename(temporary, name)


def _take(folder: int, uid: str) -> bool:
    """Become the one keeper of this folder; False if there is or was another."""
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _put(
            "claim",
            {"uid": uid, "pid": os.getpid(), "start": start_time(os.getpid()), "boot": boot_id()},
            exclusive=True,
        )
    except (BlockingIOError, FileExistsError):
        return False
    return True  # the descriptor stays open until this process ends


def _become(command: list[str], recorded: int, keeper: int, home: str) -> None:
    """In the child: wait until the keeper has recorded it, then become the command. Never returns."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        # A keeper that died before the line above sends no signal; the pipe's end tells of it.
        if os.getppid() != keeper or os.read(recorded, 1) != b"!":
            os._exit(EXEC_FAILED)
        for fd, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), fd)
        os.chdir(home)
        for number in _FOR_THE_CHILD:
            signal.signal(number, signal.SIG_DFL)
        # One that came meanwhile was held back, not lost: it ends this process here, and is recorded as its end.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_CHILD)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(EXEC_FAILED)


def keep(folder: str, uid: str, command: list[str]) -> int:
    # Signals of a terminal or of a service manager are for the coordinator; it ends the child by its id.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_CHILD)
    home = os.getcwd()
    os.chdir(folder)
    if not _take(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), uid):
        return ALREADY_CLAIMED
    read, write = os.pipe()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(write)
        _become(command, read, keeper, home)
    os.close(read)
    _put("child", {"pid": child, "start": start_time(child), "boot": boot_id()})
    os.write(write, b"!")
    os.close(write)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    _put("exit", {"code": max(code, 0), "signal": max(-code, 0), "time": time.time()})
    return 0


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1], sys.argv[2], sys.argv[3:]))
