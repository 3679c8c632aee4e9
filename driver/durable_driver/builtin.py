"""The built-in agent as a `start` function: what `durable driver` runs."""

from __future__ import annotations

import asyncio
import os

from durable_driver.agent import parse_agent
from durable_driver.context import DriveContext
from durable_driver.providers import make_provider
from durable_harness import Submission


async def builtin_start(drive: DriveContext) -> Submission:
    """All that can be wrong with agent, model and input is found before the Space is spoken to."""
    spec = parse_agent(drive.agent_yaml, f"DURABLE_AGENT ({drive.environment.agent_path})")
    prompt = drive.input
    # Off the loop: a model's library takes seconds to import.
    provider = await asyncio.to_thread(make_provider, spec.model, os.environ, drive.environment.script_path)
    harness = await drive.open_harness(models={spec.model.provider: provider})
    root = await harness.root(spec.agent())
    return await root.submit(prompt, request_id=drive.request_id)
