"""What every ExecutionEnv must do. A check makes the environments that it needs through the given `MakeEnv`, and fails by
AssertionError.

    await check_env(make_env)

or one after the other, from a test framework: `for check in CHECKS: await check.run(make_env)`. How a `MakeEnv` is to behave is
said at it. Aborting is cancelling (see `durable_harness.env`), so "aborted before" is a task that was cancelled before it came to
the operation.
"""

from __future__ import annotations

from durable_harness.testing import _env_commands, _env_files, _env_output, _env_readers
from durable_harness.testing._env_check import Check, MakeEnv
from durable_harness.testing._env_check import check as _registry

_MODULES = (_env_files, _env_readers, _env_commands, _env_output)  # imported so that their checks register themselves

CHECKS: tuple[Check, ...] = tuple(sorted(_registry.checks, key=lambda check: check.number))


async def check_env(make_env: MakeEnv) -> None:
    """Run every check, in order. AssertionError names the one that failed."""
    for check in CHECKS:
        try:
            await check.run(make_env)
        except AssertionError as error:
            raise AssertionError(f"case {check.number}, {check.name}: {error}") from error


__all__ = ["CHECKS", "Check", "MakeEnv", "check_env"]
