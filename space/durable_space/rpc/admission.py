"""The caller of a request, admitted as one that reads or as one that changes. One text for every service."""

from __future__ import annotations

from durable_space.gate import Caller
from durable_space.rpc.caller import read_caller, text_metadata
from durable_space.rpc.guard import Context
from durable_space.runtime import Runtime


def caller_of(context: Context, epoch_in_message: int | None = None) -> Caller:
    """Not admitted yet. Raise Refused for what is not well-formed."""
    return read_caller(text_metadata(context.invocation_metadata()), epoch_in_message)


def admit_reader(runtime: Runtime, context: Context) -> Caller:
    """Raise Refused."""
    caller = caller_of(context)
    runtime.gate.check_reading(caller)
    return caller


async def admit_changer(runtime: Runtime, context: Context) -> Caller:
    """Raise Refused. An anonymous caller above the floor raises it first."""
    caller = caller_of(context)
    await runtime.admit(caller)
    return caller
