"""The smallest driver: fenced log, adapter, scripted model, the coding tools. Run as a program by the tests of this folder."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from durable_base.errors import HaltError, StaleEpochError
from durable_base.floor import new_incarnation
from durable_harness import Agent, Harness, ScriptedModel, SessionFailedError, Settings, open_fenced_sqlite
from durable_harness.coding import CODING_TOOLS
from durable_spaces import RecoveryEvent, RemoteSpaces, durable_spaces
from durable_spaces.client import Address


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)  # noqa: T201 - the events of a driver go to stdout


def tell_recovery(event: RecoveryEvent) -> None:
    tell("recovery", kind=event.kind, reason=event.reason, call=event.call, mode=event.mode, epoch=event.epoch)


async def drive(arguments: argparse.Namespace) -> None:
    incarnation = arguments.incarnation or new_incarnation()
    storage, fence = await open_fenced_sqlite(arguments.log, arguments.epoch, incarnation)
    tell("log.opened")
    spaces = durable_spaces(
        spaces=RemoteSpaces(Address(arguments.space)),
        epoch=arguments.epoch,
        incarnation=incarnation,
        fence=fence,
        mode=arguments.mode,
        lease_token=arguments.lease,
        transactional=json.loads(arguments.transactional),
        on_event=tell_recovery,
    )
    models = {"script": ScriptedModel.load(arguments.script)}
    try:
        async with Harness.open(
            storage,
            fence=fence,
            models=models,
            tools=CODING_TOOLS,
            extensions=[spaces.extension],
            env=spaces.env,
            settings=Settings(restart_limit=20),  # the tests kill more drivers in one call than a session should lose
        ) as harness:
            root = await harness.root(Agent(model="script", tools=["read", "write", "edit", "bash"]))
            attached = await spaces.attach(harness.session)
            tell("space.advanced", killed=attached.killed, adopted=attached.adopted, pending=attached.pending)
            harness.resume()
            answer = await (await root.submit("go", request_id="input")).wait()
            await spaces.ensure_space()
            tell("settled", answer=answer.text)
    finally:
        await spaces.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--space", required=True)
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--incarnation", default="")
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--lease", default="")
    parser.add_argument("--transactional", default="{}")
    try:
        asyncio.run(drive(parser.parse_args()))
    except (SessionFailedError, StaleEpochError, HaltError) as error:
        cause = error.__cause__ if isinstance(error, SessionFailedError) else error
        tell("ended", reason=getattr(cause, "reason", type(cause).__name__), message=str(cause))
        if isinstance(cause, StaleEpochError):
            return 75
        return 78 if isinstance(cause, HaltError) and cause.permanent else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
