"""One script of calls of `cua.env.v1`, for any daemon that speaks it. Each call has a name and leaves an observation."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from typing import Any

import grpc
from cua_observe import Observation, Observer
from cua_peers import CALL_SECONDS, Peer
from google.protobuf.duration_pb2 import Duration

from durable_protocol.cua.env.v1 import filesystem_pb2 as fs
from durable_protocol.cua.env.v1 import process_pb2 as ps
from durable_protocol.cua.env.v1 import system_pb2 as sy
from durable_space.testing import until

# Bytes of two pipes have an order only where time passes between them.
BOTH_STREAMS = "echo out; sleep 0.1; echo err >&2; exit 3"


class Script:
    """Run once on one peer. `observed` is what it saw, by the name of the call, in order."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.observer = Observer(str(peer.workspace))
        self.observed: dict[str, Observation] = {}
        self._live: dict[str, Iterator[Any]] = {}

    def run(self) -> dict[str, Observation]:
        self.capabilities_and_tokens()
        self.plain_commands()
        self.environment_and_folder()
        self.commands_that_cannot_start()
        self.timeouts()
        self.request_ids()
        self.stdin()
        self.signals()
        self.attaching()
        self.large_output()
        self.listing()
        self.folders()
        self.writing()
        self.reading()
        self.moving_and_removing()
        self.uploads()
        self.epochs()
        return self.observed

    # How calls are made and noted.

    def note(self, name: str, observation: Observation) -> Observation:
        assert name not in self.observed, f"two calls are named {name!r}"
        self.observed[name] = observation
        return observation

    def value(self, name: str, method: Any, request: Any) -> Observation:
        self.observer.call = name
        return self.note(name, self.observer.value(lambda: self.peer.call(method, request)))

    def start(self, name: str, *words: str, **options: Any) -> Observation:
        """Start, and follow to the end."""
        self.observer.call = name
        return self.note(name, self.observer.stream(lambda: self._starting(*words, **options)))

    def begin(self, tag: str, *words: str, **options: Any) -> int:
        """Start in the background; give its process id. `end` notes what it came to."""
        stream = iter(self._starting(*words, tag=tag, **options))
        first = next(stream).event
        self.observer.know(int(first.start.pid), tag)
        self._live[tag] = iter([first])
        self._live[tag + " rest"] = stream
        return int(first.start.pid)

    def end(self, name: str, tag: str) -> Observation:
        first = self._live.pop(tag)
        rest = self._live.pop(tag + " rest")
        return self.note(name, self.observer.stream(lambda: rest, first=first))

    def _starting(
        self, *words: str, env: dict[str, str] | None = None, cwd: str | None = None, timeout: float | None = None,
        user: str = "", keepalive: float = 0, **fields: Any,
    ) -> Any:  # fmt: skip
        words = ("/bin/sh", "-c", words[0]) if len(words) == 1 and " " in words[0] else words
        config = ps.ProcessConfig(command=words[0] if words else "", args=words[1:], env=env or {}, user=user)
        config.cwd = str(self.peer.workspace) if cwd is None else cwd
        if timeout is not None:
            config.timeout.FromNanoseconds(int(timeout * 1e9))
        request = ps.StartProcessRequest(config=config, **fields)
        if keepalive:
            request.keepalive_interval.FromNanoseconds(int(keepalive * 1e9))
        return self.peer.call(self.peer.processes.StartProcess, request)

    def connect(self, name: str, **fields: Any) -> Observation:
        request = ps.ConnectProcessRequest(**fields)
        return self.note(
            name, self.observer.stream(lambda: self.peer.call(self.peer.processes.ConnectProcess, request))
        )

    def record(self, name: str, request_id: str) -> Observation:
        return self.value(name, self.peer.processes.GetExecRecord, ps.GetExecRecordRequest(request_id=request_id))

    def send(self, name: str, data: bytes, **fields: Any) -> Observation:
        sequence, writer = fields.pop("sequence", 0), fields.pop("writer_id", "")
        request = ps.SendInputRequest(
            process=ps.ProcessSelector(**fields), input=ps.ProcessInput(stdin=data), sequence=sequence, writer_id=writer
        )
        return self.value(name, self.peer.processes.SendInput, request)

    def close_stdin(self, name: str, **selector: Any) -> Observation:
        request = ps.CloseStdinRequest(process=ps.ProcessSelector(**selector))
        return self.value(name, self.peer.processes.CloseStdin, request)

    def signal(self, name: str, number: int, *, group: bool = False, **selector: Any) -> Observation:
        request = ps.SignalProcessRequest(
            process=ps.ProcessSelector(**selector), signal=ps.Signal.ValueType(number), process_group=group
        )
        return self.value(name, self.peer.processes.SignalProcess, request)

    def path(self, *parts: str) -> str:
        return os.path.join(str(self.peer.workspace), *parts)

    def wait_for_file(self, name: str) -> None:
        until(lambda: (self.peer.workspace / name).exists(), CALL_SECONDS, f"{name} is there")

    def wait_output(self, tag: str, size: int) -> None:
        request = ps.ListProcessesRequest(tag_prefix=tag)

        def there() -> bool:
            found = self.peer.call(self.peer.processes.ListProcesses, request).processes
            return bool(found) and found[0].output_end_offset >= size

        until(there, CALL_SECONDS, f"{tag} has written {size} bytes")

    def wait_ended(self, tag: str) -> None:
        def ended() -> bool:
            request = ps.ListProcessesRequest(include_exited=True, tag_prefix=tag)
            found = self.peer.call(self.peer.processes.ListProcesses, request).processes
            return bool(found) and all(one.state == ps.PROCESS_STATE_EXITED for one in found)

        until(ended, CALL_SECONDS, f"{tag} has ended")

    # The script.

    def capabilities_and_tokens(self) -> None:
        peer = self.peer
        answer = peer.call(peer.system.GetCapabilities, sy.GetCapabilitiesRequest())
        features = {feature.name: feature.supported for feature in answer.features}
        plain = self.observer.message(answer)
        self.note("capabilities", {key: value for key, value in plain.items() if key != "features"})
        self.note("features", {name: True for name, supported in features.items() if supported})
        self.value("health", peer.system.Health, sy.HealthRequest())
        self.value("metrics", peer.system.Metrics, sy.MetricsRequest())
        self.value("metrics of a folder", peer.system.Metrics, sy.MetricsRequest(disk_path="/tmp"))
        self.value("metrics of a folder that is not there", peer.system.Metrics, sy.MetricsRequest(disk_path="/nope"))
        for name, pairs in {
            "no token": (),
            "wrong token": (("authorization", "Bearer wrong"),),
            "token of another scheme": (("authorization", f"Basic {peer.token}"),),
            "token without scheme": (("authorization", peer.token),),
            "scheme in lower case": (("authorization", f"bearer {peer.token}"),),
            "token and a space": (("authorization", f"Bearer {peer.token} "),),
        }.items():
            self._with(f"{name}: health", pairs, peer.system.Health, sy.HealthRequest())
            self._with(f"{name}: stat", pairs, peer.filesystem.Stat, fs.StatRequest(path="/"))
            self._with(f"{name}: record", pairs, peer.processes.GetExecRecord, ps.GetExecRecordRequest(request_id="x"))
        raw = peer.channel.unary_unary("/cua.env.v1.ProcessService/GetExecRecord")
        self._with("no token and no message", (), raw, b"\xff\xff\xff")
        raw = peer.channel.unary_unary("/cua.env.v1.ProcessService/GetExecRecord")
        self._with("token and no message", peer.metadata, raw, b"\xff\xff\xff")
        raw = peer.channel.unary_unary("/cua.env.v1.ProcessService/NoSuchMethod")
        self._with("unknown method", peer.metadata, raw, b"")
        raw = peer.channel.unary_unary("/cua.env.v1.NoSuchService/NoSuchMethod")
        self._with("unknown service", peer.metadata, raw, b"")
        self._with("unknown method without a token", (), raw, b"")

    def _with(self, name: str, metadata: Any, method: Any, request: Any) -> None:
        def call() -> Any:
            return method(request, metadata=metadata, timeout=CALL_SECONDS)

        self.note(name, self.observer.value(call))

    def plain_commands(self) -> None:
        self.start("true", "true")
        self.start("false", "false")
        self.start("output on both streams", BOTH_STREAMS)
        self.start("exit 255", "exit 255 ;")
        self.start("no output but a newline", "echo ''")
        self.start("bytes that are no text", r"printf '\000\377\200x'")
        self.start("arguments with blanks", "/bin/echo", "a b", "", "c*")
        self.start("program by its path", "/bin/echo", "x")
        self.start("its own signal", "kill -9 $$ ; true")
        self.start("SIGTERM to itself", "kill -15 $$ ; true")
        self.start("a real-time signal", "kill -40 $$ ; true")
        self.start("with a tag", "true", tag="tagged")
        self.start("same tag again", "true", tag="tagged")
        self.start("with a request id", "true", request_id="rq-only")
        self.start("kill on disconnect, not used", "true", kill_on_disconnect=True)
        self.start("keepalive", "sleep 0.5 ; true", keepalive=0.1)

    def environment_and_folder(self) -> None:
        self.start("a variable", 'echo "$A $B"', env={"A": "one", "B": "two words"})
        self.start("an empty variable", 'echo "${A-unset}."', env={"A": ""})
        self.start("PATH of the caller's", "echo $PATH ;", env={"PATH": "/bin:/nowhere"})
        self.start("program on the caller's PATH", "mine", env={"PATH": self.path()})
        self.start("folder", "pwd", cwd="/usr")
        self.start("PWD", 'echo "$PWD"', cwd="/usr")
        self.start("folder with a trailing slash", "pwd", cwd="/usr/")
        self.start("home folder", "echo $HOME | wc -l", env={"HOME": "/nowhere"})
        self.start("private variables", "env | grep -c -e CUA_ -e DURABLE_ ; true")
        self.start("terminal", "test -t 0 || test -t 1 || echo none")
        self.start("umask", "umask ;")
        self.start("own process group", "test $(ps -o pgid= -p $$) -eq $$ && echo leads")
        self.start("user root", "id -u ;", user="root")
        self.start("user unknown", "true", user="no-such-user")

    def commands_that_cannot_start(self) -> None:
        self.start("no command")
        self.start("unknown program", "no-such-program")
        self.start("unknown program by path", "/no/such/program")
        self.start("folder as program", "/usr")
        (self.peer.workspace / "plain.txt").write_text("not a program\n")
        self.start("file that is not executable", self.path("plain.txt"))
        (self.peer.workspace / "script").write_text("echo ran\n")
        (self.peer.workspace / "script").chmod(0o755)
        self.start("script without an interpreter line", self.path("script"))
        self.start("folder that is not there", "true", cwd="/no/such/folder")
        self.start("file as folder", "true", cwd=self.path("plain.txt"))
        self.start("name with '='", "true", env={"A=B": "c"})
        self.start("empty name", "true", env={"": "c"})
        self.start("NUL in an argument", "echo", "a\0b")
        self.start("NUL in the command", "a\0b")
        self.start("with a terminal of no size", "true", pty=ps.PtyConfig())
        self.start("unknown program with a request id", "no-such-program", request_id="rq-missing")
        self.record("record of an unknown program", "rq-missing")
        self.start("unknown program again", "no-such-program", request_id="rq-missing")

    def timeouts(self) -> None:
        self.start("timeout", "echo before; sleep 60", timeout=0.3)
        self.start("timeout that is long enough", "true", timeout=30)
        self.start("timeout of zero", "true", timeout=0)
        self.start("negative timeout", "true", timeout=-1)
        self.start("timeout against a deaf command", "trap '' TERM; echo deaf; sleep 9 & wait; wait", timeout=0.3)
        self.start("timeout and an own exit status", "trap 'exit 7' TERM; sleep 60 & wait", timeout=0.3)
        self.start("timeout with a request id", "sleep 60 ; true", timeout=0.2, request_id="rq-timeout")
        self.record("record after a timeout", "rq-timeout")
        self.start("repeat after a timeout", "sleep 60 ; true", timeout=0.2, request_id="rq-timeout")

    def request_ids(self) -> None:
        self.record("record that is unknown", "rq-unknown")
        self.record("record of nothing", "")
        first = f"echo ran >> ran.txt; {BOTH_STREAMS}"
        self.start("first", first, request_id="rq-1", tag="t-1")
        self.record("record of the first", "rq-1")
        self.start("repeat", first, request_id="rq-1", tag="t-1")
        self.start("repeat with another tag", first, request_id="rq-1", tag="t-x")
        self.start("repeat without a tag", first, request_id="rq-1")
        self.start("another command under its id", "echo other ;", request_id="rq-1")
        self.start("another folder under its id", "true", cwd="/usr", request_id="rq-only")
        self.start("another environment under its id", "true", env={"A": "b"}, request_id="rq-only")
        self.start("another timeout under its id", "true", timeout=5, request_id="rq-only")
        self.start("stdin under its id", "true", stdin=True, request_id="rq-only")
        self.note("ran once", {"lines": (self.peer.workspace / "ran.txt").read_text().count("\n")})
        self.start("id with blanks and slashes", "true", request_id="log/1:2:0 x@7")
        self.record("record of that id", "log/1:2:0 x@7")
        self.start("id of 256 bytes", "true", request_id="x" * 256)
        self.start("id of 1,000 bytes", "true", request_id="x" * 1000)
        self.start("tag of 1,000 bytes", "true", tag="x" * 1000)
        self.begin("t-run", "echo begun; while test ! -e go-run; do sleep 0.02; done; echo done", request_id="rq-run")
        self.wait_output("t-run", 6)
        self.record("record of a running command", "rq-run")
        repeated = iter(
            self._starting(
                "echo begun; while test ! -e go-run; do sleep 0.02; done; echo done", request_id="rq-run", tag="t-run"
            )
        )
        first = next(repeated).event
        (self.peer.workspace / "go-run").touch()
        self.note("repeat while it runs", self.observer.stream(lambda: repeated, first=[first]))
        self.end("the running command", "t-run")
        self.start("signal with an id", "kill -9 $$ ; true", request_id="rq-signal")
        self.record("record of a signal", "rq-signal")

    def stdin(self) -> None:
        pid = self.begin("t-cat", "cat", stdin=True, request_id="rq-cat")
        self.send("input by tag", b"one\n", tag="t-cat")
        self.send("input by pid", b"two\n", pid=pid)
        self.send("input in sequence", b"three\n", tag="t-cat", sequence=1, writer_id="w")
        self.send("input repeated", b"three\n", tag="t-cat", sequence=1, writer_id="w")
        self.send("input with a gap", b"five\n", tag="t-cat", sequence=3, writer_id="w")
        self.send("input after a gap", b"four\n", tag="t-cat", sequence=2, writer_id="w")
        self.send("input of an older sequence", b"old\n", tag="t-cat", sequence=1, writer_id="w")
        self.send("first input of a late number", b"five\n", tag="t-cat", sequence=5, writer_id="u")
        self.send("input of another writer", b"other\n", tag="t-cat", sequence=1, writer_id="v")
        self.send("input without a writer", b"none\n", tag="t-cat", sequence=1)
        self.send("input without a writer again", b"none\n", tag="t-cat", sequence=1)
        self.send("empty input", b"", tag="t-cat")
        self.send("input to nobody", b"x")
        self.send("input to an unknown tag", b"x", tag="t-unknown")
        selector = ps.ProcessSelector(tag="t-cat")
        request = ps.SendInputRequest(process=selector)
        self.value("no input", self.peer.processes.SendInput, request)
        request = ps.SendInputRequest(process=selector, input=ps.ProcessInput(pty=b"x"))
        self.value("terminal input without a terminal", self.peer.processes.SendInput, request)
        self.value(
            "size of no terminal",
            self.peer.processes.ResizePty,
            ps.ResizePtyRequest(process=selector, size=ps.PtySize(cols=80, rows=24)),
        )
        parts = [
            ps.StreamInputRequest(process=selector),
            ps.StreamInputRequest(input=ps.ProcessInput(stdin=b"streamed ")),
            ps.StreamInputRequest(keepalive={}),
            ps.StreamInputRequest(input=ps.ProcessInput(stdin=b"input\n")),
        ]
        self.value("streamed input", self.peer.processes.StreamInput, iter(parts))
        self.value("streamed input to nobody", self.peer.processes.StreamInput, iter(parts[1:]))
        self.value("no streamed input", self.peer.processes.StreamInput, iter([]))
        twice = [parts[0], parts[0], parts[1]]
        self.value("two selectors in one stream", self.peer.processes.StreamInput, iter(twice))
        unknown = ps.StreamInputRequest(process=ps.ProcessSelector(tag="t-unknown"))
        self.value("streamed input to an unknown tag", self.peer.processes.StreamInput, iter([unknown, parts[1]]))
        self.close_stdin("close", tag="t-cat")
        self.end("what cat read", "t-cat")
        self.close_stdin("close after the end", tag="t-cat")
        self.send("input after the end", b"late", tag="t-cat")
        self.value("streamed input after the end", self.peer.processes.StreamInput, iter(parts))
        self.begin("t-twice", "cat; while test ! -e go-twice; do sleep 0.02; done", stdin=True)
        self.close_stdin("close once", tag="t-twice")
        self.close_stdin("close twice", tag="t-twice")
        self.send("input after it was closed", b"late", tag="t-twice")
        (self.peer.workspace / "go-twice").touch()
        self.end("closed twice", "t-twice")
        self.begin("t-none", "cat; while test ! -e go-none; do sleep 0.02; done")
        self.send("input without stdin", b"x", tag="t-none")
        self.close_stdin("close without stdin", tag="t-none")
        (self.peer.workspace / "go-none").touch()
        self.end("without stdin", "t-none")
        self.close_stdin("close nobody's")
        self.close_stdin("close an unknown tag's", tag="t-unknown")

    def signals(self) -> None:
        for name, number in (("HUP", 1), ("INT", 2), ("QUIT", 3), ("USR1", 10), ("TERM", 15), ("KILL", 9)):
            tag = f"t-{name}"
            self.begin(tag, "sleep", "60")
            self.signal(f"SIG{name}", number, tag=tag)
            self.end(f"ended by SIG{name}", tag)
        pid = self.begin("t-trap", "trap 'echo caught; exit 5' USR2; touch armed; while :; do sleep 0.02; done")
        self.wait_for_file("armed")
        self.signal("a caught signal, by pid", 12, pid=pid)
        self.end("caught", "t-trap")
        self.begin("t-stop", "sleep 0.2; echo went on")
        self.signal("SIGSTOP", 19, tag="t-stop")
        self.signal("SIGCONT", 18, tag="t-stop")
        self.end("stopped and continued", "t-stop")
        self.begin("t-group", "sleep 60 & touch grouped; wait; echo done")
        self.wait_for_file("grouped")
        self.signal("to the group", 15, tag="t-group", group=True)
        self.end("group ended", "t-group")
        self.signal("after the end", 15, tag="t-group")
        self.signal("to the group after the end", 15, tag="t-group", group=True)
        self.signal("of number 0", 0, tag="t-group")
        self.signal("to nobody", 15)
        self.signal("to an unknown tag", 15, tag="t-unknown")
        self.signal("to an unmanaged pid", 15, pid=os.getpid())
        self.begin("t-odd", "sleep", "60")
        self.signal("of an unnamed number", 17, tag="t-odd")
        self.signal("of an impossible number", 1000, tag="t-odd")
        self.signal("of number 0 while it runs", 0, tag="t-odd")
        self.signal("to end it", 9, tag="t-odd")
        self.end("after odd signals", "t-odd")

    def attaching(self) -> None:
        command = "printf 0123456789; while test ! -e go-attach; do sleep 0.02; done; printf abcdef; exit 6"
        pid = self.begin("t-attach", command, request_id="rq-attach")
        self.wait_output("t-attach", 10)
        streams = {}
        for name, fields in {
            "attach by tag": {"process": ps.ProcessSelector(tag="t-attach")},
            "attach by pid": {"process": ps.ProcessSelector(pid=pid)},
            "attach from the start": {"process": ps.ProcessSelector(tag="t-attach"), "replay_from_offset": 0},
            "attach from the middle": {"process": ps.ProcessSelector(tag="t-attach"), "replay_from_offset": 4},
            "attach from the end": {"process": ps.ProcessSelector(tag="t-attach"), "replay_from_offset": 10},
            "attach for the newest bytes": {"process": ps.ProcessSelector(tag="t-attach"), "replay_bytes": 3},
            "attach for more than there is": {"process": ps.ProcessSelector(tag="t-attach"), "replay_bytes": 99},
            "attach for bytes and offset": {
                "process": ps.ProcessSelector(tag="t-attach"),
                "replay_bytes": 3,
                "replay_from_offset": 8,
            },
            "attach from beyond": {"process": ps.ProcessSelector(tag="t-attach"), "replay_from_offset": 12},
        }.items():
            stream = self.peer.call(self.peer.processes.ConnectProcess, ps.ConnectProcessRequest(**fields))
            try:
                streams[name] = ([next(stream).event], stream)
            except grpc.RpcError as error:
                self.note(name, {"error": self.observer.error(error)})
        (self.peer.workspace / "go-attach").touch()
        for name, (first, stream) in streams.items():
            self.note(name, self.observer.stream(lambda stream=stream: stream, first=first))
        self.end("attached to", "t-attach")
        for offset in (0, 9, 10, 15, 16, 17):
            self.connect(
                f"after its end, from {offset}", process=ps.ProcessSelector(tag="t-attach"), replay_from_offset=offset
            )
        self.connect("after its end", process=ps.ProcessSelector(tag="t-attach"))
        self.connect("after its end, by request id", process=ps.ProcessSelector(tag="rq-attach"))
        self.connect("after its end, by pid", process=ps.ProcessSelector(pid=pid))
        self.connect("after its end, newest bytes", process=ps.ProcessSelector(tag="t-attach"), replay_bytes=4)
        self.connect("attach to an unknown tag", process=ps.ProcessSelector(tag="t-unknown"))
        self.connect("attach to an unmanaged pid", process=ps.ProcessSelector(pid=1))
        self.connect("attach to nobody")
        self.connect("attach to a tag that two had", process=ps.ProcessSelector(tag="tagged"))

    def large_output(self) -> None:
        text = "head -c 200000 /dev/zero | tr '\\0' x; echo end"
        seen = self.start("200,000 bytes", text, request_id="rq-large", tag="t-large")
        _shorten(seen)
        seen = self.record("record of 200,000 bytes", "rq-large")
        tail = seen.get("ok", {}).get("record", {}).get("tail", [])
        if tail:
            seen["ok"]["record"]["tail"] = "joined"
        _shorten(self.start("repeat of 200,000 bytes", text, request_id="rq-large", tag="t-large"))
        for offset in (0, 100_000, 200_000):
            _shorten(
                self.connect(
                    f"200,000 bytes from {offset}", process=ps.ProcessSelector(tag="t-large"), replay_from_offset=offset
                )
            )
        text = "head -c 4000000 /dev/zero | tr '\\0' x; echo end"
        seen = self.start("little scrollback", text, request_id="rq-small", tag="t-small", scrollback_bytes=65536)
        for field in ("stdout", "first_offset", "gap"):  # how much a slow reader gets of it is a race
            seen.pop(field, None)
        self.wait_ended("t-small")
        _shorten(self.connect("offset that is gone", process=ps.ProcessSelector(tag="t-small"), replay_from_offset=10))
        seen = self.connect("what is left", process=ps.ProcessSelector(tag="t-small"), replay_bytes=1 << 20)
        self.note("enough is left", {"bytes": len(seen["stdout"]) >= 65536, "end": seen["stdout"].endswith("end\n")})
        _shorten(seen)

    def listing(self) -> None:
        def listed(name: str, **fields: Any) -> None:
            call = self.peer.call
            answer = call(self.peer.processes.ListProcesses, ps.ListProcessesRequest(**fields))
            found = sorted(answer.processes, key=lambda one: one.tag)
            self.note(name, {"processes": [self.observer.message(one) for one in found]})

        listed("none runs", tag_prefix="l-")
        self.begin("l-one", "/bin/sleep", "60", env={"A": "b"}, timeout=50)
        self.begin("l-two", "/bin/sleep", "61", stdin=True, request_id="rq-listed")
        listed("running", tag_prefix="l-")
        listed("running by a longer prefix", tag_prefix="l-o")
        listed("running and ended", tag_prefix="l-", include_exited=True)
        self.signal("end the first", 15, tag="l-one")
        self.end("first listed", "l-one")
        self.wait_ended("l-one")
        listed("one has ended", tag_prefix="l-")
        listed("one has ended, shown", tag_prefix="l-", include_exited=True)
        self.signal("end the second", 9, tag="l-two")
        self.end("second listed", "l-two")

    def folders(self) -> None:
        files = self.peer.filesystem
        top = self.peer.workspace
        self.value("make", files.MakeDir, fs.MakeDirRequest(path=self.path("d")))
        self.value("make again", files.MakeDir, fs.MakeDirRequest(path=self.path("d")))
        self.value("make again with parents", files.MakeDir, fs.MakeDirRequest(path=self.path("d"), parents=True))
        self.value("make below what is not there", files.MakeDir, fs.MakeDirRequest(path=self.path("x/y/z")))
        self.value("make with parents", files.MakeDir, fs.MakeDirRequest(path=self.path("x/y/z"), parents=True))
        self.value("make with a mode", files.MakeDir, fs.MakeDirRequest(path=self.path("private"), mode=0o700))
        self.value("make where a file is", files.MakeDir, fs.MakeDirRequest(path=self.path("plain.txt")))
        self.value("make below a file", files.MakeDir, fs.MakeDirRequest(path=self.path("plain.txt/x"), parents=True))
        self.value("make nothing", files.MakeDir, fs.MakeDirRequest(path=""))
        self.value("make as another user", files.MakeDir, fs.MakeDirRequest(path=self.path("u"), run_as="no-such-user"))
        (top / "plain.txt").chmod(0o640)
        (top / "link").symlink_to("plain.txt")
        (top / "dangling").symlink_to("nowhere")
        os.mkfifo(top / "pipe")
        for name in ("plain.txt", "d", "link", "dangling", "pipe", "nothing", "plain.txt/x", "d/", "d/../plain.txt"):
            self.value(f"stat {name}", files.Stat, fs.StatRequest(path=self.path(name)))
            self.value(f"stat {name} itself", files.Stat, fs.StatRequest(path=self.path(name), no_follow_symlinks=True))
        self.value("stat root", files.Stat, fs.StatRequest(path="/"))
        self.value("stat nothing named", files.Stat, fs.StatRequest(path=""))
        self.value("stat home", files.Stat, fs.StatRequest(path="~"))
        self.value("stat relative", files.Stat, fs.StatRequest(path="plain.txt"))
        self.value("stat NUL", files.Stat, fs.StatRequest(path="a\0b"))
        self.value("stat a very long name", files.Stat, fs.StatRequest(path=self.path("n" * 300)))
        self.value("stat as another user", files.Stat, fs.StatRequest(path="/", run_as="no-such-user"))
        self.value("stat extended attributes", files.Stat, fs.StatRequest(path="/usr", xattr_namespace="user"))
        tree = top / "tree"
        for name in ("a", "b/c", ".hidden/inside", "b/.dot", "b/e/f"):
            (tree / name).mkdir(parents=True)
        (tree / "file").write_text("12345")
        (tree / "to").symlink_to("b")
        for name, fields in {
            "list": {},
            "list hidden": {"include_hidden": True},
            "list depth 1": {"depth": 1, "include_hidden": True},
            "list depth 2": {"depth": 2, "include_hidden": True},
            "list depth 9": {"depth": 9, "include_hidden": False},
        }.items():
            self._list(name, path=str(tree), **fields)
        self._pages("list in pages", path=str(tree), include_hidden=True, depth=3, page_size=3)
        self._list("list with a strange token", path=str(tree), page_token="strange")
        self._list("list an empty folder", path=self.path("d"))
        self._list("list a link to a folder", path=str(tree / "to"))
        self._list("list a file", path=self.path("plain.txt"))
        self._list("list nothing", path=self.path("nothing"))
        self._list("list nothing named", path="")

    def _list(self, name: str, **fields: Any) -> None:
        self.value(name, self.peer.filesystem.ListDir, fs.ListDirRequest(**fields))

    def _pages(self, name: str, **fields: Any) -> None:
        sizes, paths, token = [], [], ""
        while True:
            answer = self.peer.call(self.peer.filesystem.ListDir, fs.ListDirRequest(page_token=token, **fields))
            sizes.append(len(answer.entries))
            paths += [os.path.relpath(entry.path, fields["path"]) for entry in answer.entries]
            token = answer.next_page_token
            if not token:
                break
        self.note(name, {"sizes": sizes, "paths": sorted(paths)})

    def write(self, name: str, data: bytes | None, *more: Any, **fields: Any) -> Observation:
        messages = [fs.WriteFileRequest(header=fs.WriteFileHeader(**fields))] if fields else []
        if data is not None:
            messages.append(fs.WriteFileRequest(data=data))
        return self.value(name, self.peer.filesystem.WriteFile, iter([*messages, *more]))

    def holds(self, name: str, path: str) -> None:
        """What is on disk, looked at from outside."""
        file = self.peer.workspace / path
        there = os.path.lexists(file)
        self.note(
            name,
            {
                "there": there,
                "bytes": file.read_bytes().decode("latin-1")[:64] if file.is_file() else None,
                "mode": oct(file.lstat().st_mode & 0o7777) if there else None,
                "link": os.readlink(file) if file.is_symlink() else None,
            },
        )

    def writing(self) -> None:
        self.write("write", b"hello\n", path=self.path("w/1"))
        self.write("write with parents", b"hello\n", path=self.path("w/1"), create_parents=True)
        self.holds("written", "w/1")
        self.write("write over", b"shorter", path=self.path("w/1"))
        self.write("write over, said", b"said", path=self.path("w/1"), mode=fs.WRITE_MODE_OVERWRITE)
        self.write("create where one is", b"no", path=self.path("w/1"), mode=fs.WRITE_MODE_CREATE_NEW)
        self.holds("not created", "w/1")
        self.write("create", b"new", path=self.path("w/2"), mode=fs.WRITE_MODE_CREATE_NEW)
        self.write("append", b" more", path=self.path("w/2"), mode=fs.WRITE_MODE_APPEND)
        self.holds("appended", "w/2")
        self.write("append to nothing", b"first", path=self.path("w/3"), mode=fs.WRITE_MODE_APPEND)
        self.write("write of a strange mode", b"x", path=self.path("w/4"), mode=9)
        self.write("write nothing", None, path=self.path("w/empty"))
        self.holds("empty", "w/empty")
        self.write("write with permissions", b"x", path=self.path("w/private"), permissions=0o600)
        self.holds("private", "w/private")
        (self.peer.workspace / "w/1").chmod(0o751)
        self.write("write over keeps permissions?", b"kept", path=self.path("w/1"))
        self.holds("permissions after it", "w/1")
        digest = hashlib.sha256(b"right").hexdigest()
        self.write("write with the right sum", b"right", path=self.path("w/5"), expected_sha256=digest)
        self.write("write with the wrong sum", b"wrong", path=self.path("w/5"), expected_sha256=digest)
        self.holds("after a wrong sum", "w/5")
        self.write("write with a sum in upper case", b"right", path=self.path("w/5"), expected_sha256=digest.upper())
        self.write("write with the right size", b"12345", path=self.path("w/6"), expected_size=5)
        self.write("write with the wrong size", b"1234", path=self.path("w/6"), expected_size=5)
        self.holds("after a wrong size", "w/6")
        self.write("write without a header", b"x")
        self.value("write of nothing at all", self.peer.filesystem.WriteFile, iter([]))
        header = fs.WriteFileRequest(header=fs.WriteFileHeader(path=self.path("w/7")))
        self.write("write with two headers", b"x", header, path=self.path("w/8"))
        self.write("write in pieces", b"one ", fs.WriteFileRequest(data=b"two"), path=self.path("w/9"))
        self.holds("pieces", "w/9")
        self.write("write to a folder", b"x", path=self.path("d"))
        self.write("write through a link", b"linked", path=self.path("link"))
        self.holds("the link", "link")
        self.holds("behind the link", "plain.txt")
        self.write("write through a dangling link", b"linked", path=self.path("dangling"))
        self.holds("the dangling link", "dangling")
        self.write("create where a link is", b"x", path=self.path("link"), mode=fs.WRITE_MODE_CREATE_NEW)
        self.write("write below a file", b"x", path=self.path("plain.txt/x"), create_parents=True)
        self.write("write to no path", b"x", path="", create_parents=True)
        self.write("write as another user", b"x", path=self.path("w/u"), run_as="no-such-user")
        self.write("write relative", b"relative", path="relative.txt")
        self.holds("relative", "relative.txt")

    def read(self, name: str, **fields: Any) -> Observation:
        """Chunks are joined: how they are cut is each daemon's own matter, within chunk_size."""

        def call() -> Any:
            return self.peer.call(self.peer.filesystem.ReadFile, fs.ReadFileRequest(**fields))

        seen = self.observer.value(call)
        data, place = b"", None
        kept = []
        if "ok" in seen:
            for message in call():
                kind = message.WhichOneof("message")
                kept.append(kind)
                if kind == "chunk":
                    place = message.chunk.offset if place is None else place
                    data += message.chunk.data
                    assert not fields.get("chunk_size") or len(message.chunk.data) <= fields["chunk_size"]
            joined = [part for number, part in enumerate(kept) if number == 0 or kept[number - 1] != part]
            whole = [part for part in seen["ok"] if "chunk" not in part]
            text = hashlib.sha256(data).hexdigest() if len(data) > 100 else data.decode("latin-1")
            seen = {"ok": whole, "kinds": joined, "data": text, "bytes": len(data), "first": place}
        return self.note(name, seen)

    def reading(self) -> None:
        (self.peer.workspace / "digits").write_bytes(b"0123456789")
        (self.peer.workspace / "large").write_bytes(bytes(range(256)) * 8192)
        (self.peer.workspace / "nil").write_bytes(b"")
        digits = self.path("digits")
        self.read("read", path=digits)
        self.read("read with its sum", path=digits, compute_sha256=True)
        self.read("read from the middle", path=digits, offset=4)
        self.read("read a range", path=digits, offset=2, length=3, compute_sha256=True)
        self.read("read beyond the end", path=digits, offset=8, length=30)
        self.read("read from the end", path=digits, offset=10)
        self.read("read from beyond the end", path=digits, offset=11)
        self.read("read from far beyond", path=digits, offset=2**63 - 1)
        self.read("read from further", path=digits, offset=2**64 - 1)
        self.read("read in chunks of 3", path=digits, chunk_size=3)
        self.read("read nothing", path=self.path("nil"), compute_sha256=True)
        self.read("read 2 MiB", path=self.path("large"), compute_sha256=True)
        self.read("read in huge chunks", path=self.path("large"), chunk_size=2**31)
        self.read("read a folder", path=self.path("d"))
        self.read("read a missing file", path=self.path("nothing"))
        self.read("read a link", path=self.path("link"))
        self.read("read below a file", path=self.path("plain.txt/x"))
        self.read("read no path", path="")
        self.read("read as another user", path=digits, run_as="no-such-user")

    def move(self, name: str, source: str, target: str, **fields: Any) -> Observation:
        request = fs.MoveRequest(source=self.path(source), destination=self.path(target), **fields)
        return self.value(name, self.peer.filesystem.Move, request)

    def remove(self, name: str, path: str, **fields: Any) -> Observation:
        return self.value(name, self.peer.filesystem.Remove, fs.RemoveRequest(path=self.path(path), **fields))

    def moving_and_removing(self) -> None:
        top = self.peer.workspace
        for name in ("m1", "m2", "m3", "m4", "m5"):
            (top / name).write_text(name)
        (top / "full").mkdir()
        (top / "full" / "x").write_text("x")
        (top / "hollow").mkdir()
        (top / "ml").symlink_to("m5")
        self.move("move", "m1", "moved")
        self.move("move what is gone", "m1", "moved")
        self.move("move onto a file", "m2", "moved")
        self.move("move over a file", "m2", "moved", overwrite=True)
        self.holds("moved over", "moved")
        self.move("move below what is not there", "m3", "new/m3")
        self.move("move with parents", "m3", "new/m3", create_parents=True)
        self.move("move a folder", "full", "filled")
        self.move("move a file over a folder", "m4", "hollow", overwrite=True)
        self.move("move a folder over a file", "hollow", "m4", overwrite=True)
        self.move("move a folder over an empty one", "filled", "hollow", overwrite=True)
        (top / "full2").mkdir()
        (top / "full2" / "y").write_text("y")
        self.move("move a folder over a full one", "hollow", "full2", overwrite=True)
        self.move("move a folder into itself", "full2", "full2/inner")
        self.move("move onto itself", "m5", "m5")
        self.move("move over itself", "digits", "digits", overwrite=True)
        self.holds("moved over itself", "digits")
        (top / "digits").write_bytes(b"0123456789")
        self.move("move a link", "ml", "ml2")
        self.holds("moved link", "ml2")
        self.move("move as another user", "m5", "m6", run_as="no-such-user")
        self.value("move nothing", self.peer.filesystem.Move, fs.MoveRequest(source="", destination=self.path("x1")))
        self.value("move to nothing", self.peer.filesystem.Move, fs.MoveRequest(source=self.path("m5")))
        self.remove("remove", "m5")
        self.remove("remove again", "m5")
        self.remove("remove again, fine", "m5", missing_ok=True)
        self.remove("remove a link", "ml2")
        self.remove("remove a full folder", "full2")
        self.remove("remove a full folder with all", "full2", recursive=True)
        self.remove("remove an empty folder", "private")
        self.remove("remove a file with all", "moved", recursive=True)
        self.remove("remove below a file", "plain.txt/x")
        self.remove("remove below a file, fine", "plain.txt/x", missing_ok=True)
        self.value("remove nothing named", self.peer.filesystem.Remove, fs.RemoveRequest(path=""))
        self.remove("remove as another user", "nil", run_as="no-such-user")

    def begin_upload(self, name: str, upload_id: str = "", ttl: float = 0, **header: Any) -> str:
        request = fs.BeginUploadRequest(upload_id=upload_id)
        if header:
            request.header.CopyFrom(fs.WriteFileHeader(**header))
        if ttl:
            request.ttl.CopyFrom(Duration(seconds=int(ttl), nanos=int(ttl % 1 * 1e9)))
        seen = self.value(name, self.peer.filesystem.BeginUpload, request)
        made = str(seen.get("ok", {}).get("upload_id", ""))
        if made and not upload_id:
            seen["ok"]["upload_id"] = "set"
        return made

    def chunk(self, name: str, upload_id: str, offset: int, data: bytes, **fields: Any) -> None:
        request = fs.UploadChunkRequest(upload_id=upload_id, offset=offset, data=data, **fields)
        self.value(name, self.peer.filesystem.UploadChunk, request)

    def commit(self, name: str, upload_id: str, sha256: str = "") -> None:
        request = fs.CommitUploadRequest(upload_id=upload_id, sha256=sha256)
        self.value(name, self.peer.filesystem.CommitUpload, request)

    def abort(self, name: str, upload_id: str) -> None:
        self.value(name, self.peer.filesystem.AbortUpload, fs.AbortUploadRequest(upload_id=upload_id))

    def uploads(self) -> None:
        made = self.begin_upload("upload", path=self.path("up/1"), create_parents=True, permissions=0o600)
        self.chunk("first chunk", made, 0, b"hello ")
        self.chunk("first chunk again", made, 0, b"hello ")
        self.chunk("part of it again", made, 0, b"hel")
        self.chunk("chunk that overlaps", made, 3, b"lo wor")
        self.chunk("chunk with a gap", made, 9, b"x")
        self.chunk("second chunk", made, 6, b"world")
        self.chunk("empty chunk", made, 11, b"")
        self.chunk("chunk of another lane", made, 11, b"", bulk_slot=1, bulk_len=4)
        self.holds("not there before the commit", "up/1")
        self.commit("commit with a wrong sum", made, "0" * 64)
        self.commit("commit after a wrong sum", made)
        made = self.begin_upload("upload anew", path=self.path("up/1"), create_parents=True, permissions=0o600)
        self.chunk("whole", made, 0, b"hello world")
        self.commit("commit", made, hashlib.sha256(b"hello world").hexdigest())
        self.holds("uploaded", "up/1")
        self.commit("commit again", made)
        self.chunk("chunk after the commit", made, 0, b"x")
        self.abort("abort after the commit", made)
        self.begin_upload("upload of an own id", "own-id", path=self.path("up/2"))
        self.chunk("chunk of an own id", "own-id", 0, b"part")
        self.begin_upload("upload of an own id resumed", "own-id", path=self.path("up/2"))
        self.begin_upload("own id for another path", "own-id", path=self.path("up/3"))
        self.begin_upload("own id of strange letters", "../../strange", path=self.path("up/3"))
        self.abort("abort own id", "own-id")
        self.abort("abort own id again", "own-id")
        self.chunk("chunk after abort", "own-id", 4, b"x")
        self.commit("commit after abort", "own-id")
        made = self.begin_upload("upload of a large chunk", path=self.path("up/8"))
        self.chunk("chunk of 4 MiB", made, 0, b"x" * (4 << 20))
        self.chunk("chunk of more", made, 4 << 20, b"x" * ((4 << 20) + 1))
        self.chunk("chunk of an old offset, empty", made, 0, b"")
        self.abort("abort of a large chunk", made)
        self.chunk("chunk of an unknown id", "unknown-id", 0, b"x")
        self.commit("commit of an unknown id", "unknown-id")
        self.abort("abort of an unknown id", "unknown-id")
        self.abort("abort of no id", "")
        self.begin_upload("upload without a header")
        self.begin_upload("upload to no path", path="")
        self.begin_upload("upload to a folder", path=self.path("d"))
        self.begin_upload("upload below what is not there", path=self.path("no/where"))
        self.begin_upload("upload as another user", path=self.path("up/4"), run_as="no-such-user")
        made = self.begin_upload("upload with a size", path=self.path("up/5"), expected_size=5)
        self.chunk("too little", made, 0, b"1234")
        self.commit("commit of too little", made)
        made = self.begin_upload("upload with a size again", path=self.path("up/5"), expected_size=5)
        self.chunk("too much", made, 0, b"123456")
        self.commit("commit of too much", made)
        self.holds("wrong sizes left", "up/5")
        made = self.begin_upload("create by upload", path=self.path("up/1"), mode=fs.WRITE_MODE_CREATE_NEW)
        self.chunk("chunk to create", made, 0, b"new")
        self.commit("commit to create", made)
        made = self.begin_upload("append by upload", path=self.path("up/1"), mode=fs.WRITE_MODE_APPEND)
        self.chunk("chunk to append", made, 0, b"!")
        self.commit("commit to append", made)
        self.holds("appended by upload", "up/1")
        made = self.begin_upload("upload of nothing", path=self.path("up/empty"))
        self.commit("commit of nothing", made)
        self.holds("nothing uploaded", "up/empty")
        made = self.begin_upload("upload with a header sum", path=self.path("up/6"), expected_sha256="0" * 64)
        self.chunk("chunk of a wrong header sum", made, 0, b"x")
        self.commit("commit of a wrong header sum", made)
        made = self.begin_upload("upload for a moment", ttl=0.05, path=self.path("up/7"))
        time.sleep(1.2)
        self.chunk("chunk after its time", made, 0, b"x")
        self.note("left over", {"names": sorted(os.listdir(self.peer.workspace / "up"))})

    def advance(self, name: str, epoch: int) -> Observation:
        return self.value(name, self.peer.processes.AdvanceEpoch, ps.AdvanceEpochRequest(epoch=epoch))

    def epochs(self) -> None:
        self.advance("advance to 0", 0)
        self.start("start at epoch 0", "echo zero ;", request_id="e-0")
        self.begin("e-plain", "sleep 3; echo still here")
        self.advance("advance to 1", 1)
        self.begin("e-old", "sleep", "60", request_id="e-old", epoch=1)
        self.begin("e-fork", "(setsid sleep 63 &) ; touch forked; sleep 64", request_id="e-fork", epoch=1)
        self.wait_for_file("forked")
        self.advance("advance to 5", 5)
        self.end("killed by it", "e-old")
        self.end("killed by it, with a child", "e-fork")
        self.end("started without an epoch", "e-plain")
        self.record("record of what it killed", "e-old")
        self.start("repeat of what it killed", "sleep", "60", request_id="e-old", tag="e-old", epoch=5)
        self.advance("advance to 5 again", 5)
        self.advance("advance to 4", 4)
        self.start("start at an old epoch", "touch stale", request_id="e-stale", epoch=4)
        self.start("start without an epoch", "echo none ;", request_id="e-none")
        self.start("start without epoch and id", "echo neither ;")
        self.start("start at the epoch", "echo five ;", request_id="e-5", epoch=5)
        self.record("record at the epoch", "e-5")
        self.start("repeat at the epoch", "echo five ;", request_id="e-5", epoch=5)
        self.start("repeat at an old epoch", "echo five ;", request_id="e-5", epoch=3)
        self.start("old row at the new epoch", "echo zero ;", request_id="e-0", epoch=5)
        self.record("record of an old epoch", "e-0")
        self.record("record unknown at an epoch", "e-unknown")
        self.begin("e-five", "sleep", "62", request_id="e-five", epoch=5)
        self.start("start above the epoch", "echo seven ;", request_id="e-7", epoch=7)
        self.end("killed by a higher start", "e-five")
        self.record("record of what a higher start killed", "e-five")
        self.start("start at the epoch before", "echo five ;", request_id="e-5b", epoch=5)
        self.start("unknown program at an epoch", "no-such-program", request_id="e-missing", epoch=7)
        self.begin("e-seven", "cat", stdin=True, request_id="e-seven", epoch=7)
        self.send("input without an epoch", b"x\n", tag="e-seven")
        self.signal("signal without an epoch", 15, tag="e-seven")
        files = self.peer.filesystem
        self.value("folder without an epoch", files.MakeDir, fs.MakeDirRequest(path=self.path("late")))
        self.write("write without an epoch", b"late", path=self.path("late.txt"))
        self.value("stat without an epoch", files.Stat, fs.StatRequest(path=self.path("digits")))
        self.advance("advance far", 2**53 - 2)
        self.end("after a signal without an epoch", "e-seven")
        self.advance("advance too far", 2**53)
        self.advance("advance further", 2**64 - 1)
        self.start("start after it all", "true", epoch=2**53 - 2)
        self.note("stale ran", {"there": (self.peer.workspace / "stale").exists()})
        self.value("health at the end", self.peer.system.Health, sy.HealthRequest())


def _shorten(seen: Observation) -> None:
    """Long output as its length and digest."""
    for stream in ("stdout", "stderr"):
        if len(seen.get(stream, "")) > 200:
            text = seen[stream]
            seen[stream] = f"{len(text)} bytes, {hashlib.sha256(text.encode('latin-1')).hexdigest()[:12]}"
