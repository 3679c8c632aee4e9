"""Uses Cua's own SDK as its users do, on the daemon at argv[1] with the token argv[2], in the folder argv[3].

Run as a process of its own, with the package `cua` alone on its path. Prints one JSON object: what it saw.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import cua


async def commands(env, folder, seen):
    out = await env.run(cua.SpacesdCommand(program="/bin/echo", args=["hello"], cwd=folder))
    seen["run"] = [out.exit.code, out.stdout.decode(), out.stderr.decode()]
    out = await env.sh("echo out; echo err >&2; exit 3", 5000)
    seen["sh"] = [out.exit.code, out.stdout.decode(), out.stderr.decode()]
    out = await env.run(
        cua.SpacesdCommand(program="/bin/sh", args=["-c", 'echo "$A"; pwd'], env={"A": "b"}, cwd=folder)
    )
    seen["environment and folder"] = out.stdout.decode().replace(folder, "$W")
    out = await env.run(cua.SpacesdCommand(program="sleep", args=["60"], timeout_ms=200))
    seen["timeout"] = out.exit.timed_out
    out = await env.run(cua.SpacesdCommand(program="head", args=["-c", "3000000", "/dev/zero"]))
    seen["3,000,000 bytes"] = len(out.stdout)
    for count in (1, 2):
        command = cua.SpacesdCommand(
            program="/bin/sh", args=["-c", "echo x >> once; echo ran"], cwd=folder, request_id="once", epoch=0
        )
        seen[f"once, {count}"] = (await env.run(command)).stdout.decode()
    seen["once"] = Path(folder, "once").read_text()
    out = await env.run(cua.SpacesdCommand(program="no-such-program"))
    seen["unknown program"] = [out.exit.success, out.exit.code, bool(out.exit.error)]


async def processes(env, folder, seen):
    cat = await env.spawn(cua.SpacesdCommand(program="cat", tag="sdk-cat", stdin=True))
    seen["tag"] = cat.tag()
    await cat.write_stdin(b"one\n")
    await cat.write_stdin(b"two\n")
    await cat.close_stdin()
    out = await cat.wait()
    seen["cat"] = [out.exit.code, out.stdout.decode()]
    slow = await env.spawn(cua.SpacesdCommand(program="/bin/sh", args=["-c", "echo begun; sleep 60"], tag="sdk-slow"))
    kinds = []
    while not kinds or kinds[-1] != "STDOUT":
        event = await slow.next_event()
        kinds.append(event.kind.name)
    seen["events"] = kinds
    listed = json.loads(await env.list_processes(False))
    seen["listed"] = "sdk-slow" in json.dumps(listed)
    again = await env.attach(None, "sdk-slow", cua.ReplayMode.ALL())
    seen["same process"] = again.pid() == slow.pid()
    await slow.signal("TERM", True)
    seen["signal"] = (await again.wait()).exit.signal
    await slow.detach()
    killed = await env.spawn(cua.SpacesdCommand(program="sleep", args=["60"]))
    await killed.kill()
    seen["kill"] = (await killed.wait()).exit.signal


async def files(env, folder, seen):
    path = os.path.join(folder, "up", "file")
    seen["upload"] = (await env.upload(path, b"content", None)).size
    seen["download"] = (await env.download(path)).decode()
    large = os.urandom(11_000_000)
    await env.upload(os.path.join(folder, "large"), large, cua.UploadOptions(permissions=0o600))
    seen["large, there and back"] = (await env.download(os.path.join(folder, "large"))) == large
    source, target = os.path.join(folder, "source"), os.path.join(folder, "target")
    Path(source).write_bytes(large)
    await env.upload_file(source, os.path.join(folder, "sent"), None)
    await env.download_file(os.path.join(folder, "sent"), target)
    seen["files, there and back"] = Path(target).read_bytes() == large
    stat = await env.stat(path)
    seen["stat"] = [stat.name, stat.kind, stat.size]
    seen["mode"] = oct((await env.stat(os.path.join(folder, "large"))).mode & 0o777)
    await env.make_dir(os.path.join(folder, "made", "inner"))
    await env.move_path(path, os.path.join(folder, "made", "moved"))
    entries = await env.list_dir(os.path.join(folder, "made"), 1)
    seen["list"] = sorted([entry.name, entry.kind] for entry in entries)
    await env.remove(os.path.join(folder, "made"), True)
    try:
        await env.stat(os.path.join(folder, "made"))
    except cua.CuaError as error:
        seen["removed"] = type(error).__name__
    try:
        await env.upload(os.path.join(folder, "large"), b"x", cua.UploadOptions(create_new=True))
    except cua.CuaError as error:
        seen["create where one is"] = type(error).__name__


async def main():
    url, token, folder = sys.argv[1:4]
    seen = {}
    runtime = cua.embedded(state_dir=os.path.join(os.environ["HOME"], "state"))
    sandbox = await runtime.sandboxes().connect_url(url, token, "dev")
    env = await sandbox.spacesd(None)
    capabilities = await env.capabilities()
    seen["protocol"] = capabilities.protocol_version
    seen["ledger"] = await env.has_feature("process.exec_ledger")
    seen["health"] = "SERVING" in (await env.health()).upper()
    await commands(env, folder, seen)
    await processes(env, folder, seen)
    await files(env, folder, seen)
    try:
        wrong = await runtime.sandboxes().connect_url(url, "wrong-" + token, "wrong")
        await (await wrong.spacesd(None)).sh("true", None)
    except cua.CuaError as error:
        seen["wrong token"] = type(error).__name__
    sys.stdout.write(json.dumps(seen) + "\n")


asyncio.run(main())
