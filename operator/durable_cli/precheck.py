"""Mistakes that the built-in driver would find in its first drive, found before anything is made.

The driver's own code judges, so that the two never disagree; only the names are those of the manifest. A driver of the user's
own (`spec.driver.command`) says itself what it understands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from durable_base.errors import HaltError, UsageError
from durable_local.apply import Wanted


def precheck(wanted: Iterable[Wanted], environ: Mapping[str, str]) -> None:
    """Raise UsageError naming the field: mode, limits, agent, script, and what the model's provider needs from `environ`."""
    for one in wanted:
        if not one.manifest.spec.driver.command:
            _limits(one)
            _agent(one, environ)


def _limits(one: Wanted) -> None:
    from durable_spaces.limits import check_mode, parse_limits

    spec, where = one.manifest.spec, one.manifest.where
    try:
        check_mode(spec.mode)
    except HaltError as error:
        raise UsageError(f"{where}: spec.mode: {error.message}") from None
    limits = spec.transactional
    if limits is not None:
        try:
            parse_limits({"maxFiles": limits.max_files, "maxBytes": limits.max_bytes, "exclude": limits.exclude})
        except UsageError as error:
            raise UsageError(f"{where}: spec.{error}") from None


def _agent(one: Wanted, environ: Mapping[str, str]) -> None:
    # The driver's modules belong to an extra of their own, and take a while to import: `get` and the like need none of them.
    from durable_driver.agent import parse_agent
    from durable_driver.providers import make_provider
    from durable_harness.scripted import parse_script

    inputs, where = one.inputs, one.manifest.where
    assert inputs.agent is not None, "the built-in driver has an agent, or the manifest was refused"
    path = "spec.agentFrom" if one.manifest.spec.agent_from is not None else "spec.agent"
    try:
        model = parse_agent(inputs.agent, path).model
    except UsageError as error:
        raise UsageError(f"{where}: {str(error).replace(f'{path}: ', f'{path}.', 1)}") from None
    if model.provider == "scripted":
        if inputs.script is None:
            raise UsageError(f"{where}: {path}.scriptFrom: is missing; the provider scripted needs a script")
        parse_script(inputs.script, f"{where}: {path}.scriptFrom")
        return
    try:
        make_provider(model, {**environ, **inputs.env}, None)
    except UsageError as error:
        named = str(error) if str(error).startswith("model.") else f"model.provider: {error}"
        raise UsageError(f"{where}: {path}.{named}") from None
