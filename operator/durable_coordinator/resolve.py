"""Follow a spec's references into ConfigMaps where no API server does it: input, agent, script, files, environment.

Secrets are not read from files: what comes from one on a cluster comes from the environment of the person who runs it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import yaml

from durable_base.errors import UsageError
from durable_coordinator.manifest import ConfigMap, SessionManifest
from durable_coordinator.spec_check import checked, nearest
from durable_coordinator.spec_common import TextSource
from durable_coordinator.spec_session import AgentSpec
from durable_coordinator.spec_space import SpaceSpec


def resolve_input(session: SessionManifest, maps: Iterable[ConfigMap]) -> str:
    """The input text. Raises UsageError, as all of these do, naming the reference and the remedy."""
    if session.spec.input is not None:
        return session.spec.input
    assert session.spec.input_from is not None
    text = _text(session, session.spec.input_from, "spec.inputFrom", maps)
    if not text:
        raise UsageError(f"{session.where}: spec.inputFrom: the text it names is empty; say what the agent is to do")
    return text


def resolve_agent(session: SessionManifest, maps: Iterable[ConfigMap]) -> AgentSpec | None:
    """The agent, None if the driver brings its own."""
    source = session.spec.agent_from
    if source is None:
        return session.spec.agent
    text = _text(session, source, "spec.agentFrom", maps)
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UsageError(f"{session.where}: spec.agentFrom: the text it names is not YAML; repair it there") from None
    return checked(raw, AgentSpec, session.where, "spec.agentFrom")


def resolve_script(session: SessionManifest, agent: AgentSpec | None, maps: Iterable[ConfigMap]) -> str | None:
    """The scripted model's YAML, None if the agent names none."""
    if agent is None or agent.script_from is None:
        return None
    return _text(session, agent.script_from, "spec.agent.scriptFrom", maps)


def resolve_source(space: SpaceSpec, namespace: str, at: str, maps: Iterable[ConfigMap]) -> dict[str, bytes] | None:
    """File name -> content of a Space's `source.configMapRef`, None if it has none. `at`: document and path of its spec."""
    if space.source is None or space.source.config_map_ref is None:
        return None
    found = _find(space.source.config_map_ref.name, namespace, f"{at}.source.configMapRef", maps)
    return {**{key: text.encode() for key, text in found.data.items()}, **found.binary_data}


def resolve_env(session: SessionManifest, maps: Iterable[ConfigMap], environ: Mapping[str, str]) -> dict[str, str]:
    """`driver.env` as plain values; what comes from a Secret on a cluster is read from `environ` by the variable's own name."""
    maps = tuple(maps)
    values: dict[str, str] = {}
    for index, variable in enumerate(session.spec.driver.env):
        at = f"{session.where}: spec.driver.env[{index}]"
        source = variable.value_from
        if source is None:
            values[variable.name] = variable.value or ""
        elif source.config_map_key_ref is not None:
            ref = source.config_map_key_ref
            known = any(
                one.name == ref.name and one.namespace == session.namespace and ref.key in one.data for one in maps
            )
            if known or not ref.optional:
                values[variable.name] = _key(ref.name, ref.key, session.namespace, at, maps)
        elif variable.name in environ:
            values[variable.name] = environ[variable.name]
        elif source.secret_key_ref is not None and not source.secret_key_ref.optional:
            remedy = f"here it is read from the environment: export {variable.name}=..."
            raise UsageError(f"{at}: {variable.name} comes from the Secret {source.secret_key_ref.name}; {remedy}")
    return values


def agent_document(agent: AgentSpec) -> str:
    """The agent as the YAML that DURABLE_AGENT names (without `scriptFrom`)."""
    document = msgspec.to_builtins(msgspec.structs.replace(agent, script_from=None))
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _text(session: SessionManifest, source: TextSource, path: str, maps: Iterable[ConfigMap]) -> str:
    if source.config_map_key_ref is not None:
        ref = source.config_map_key_ref
        return _key(ref.name, ref.key, session.namespace, f"{session.where}: {path}", maps)
    name = source.secret_key_ref.name if source.secret_key_ref is not None else ""
    raise UsageError(f"{session.where}: {path}: the Secret {name} is only known on a cluster; use a ConfigMap here")


def _key(name: str, key: str, namespace: str, at: str, maps: Iterable[ConfigMap]) -> str:
    found = _find(name, namespace, at, maps)
    if key in found.data:
        return found.data[key]
    if key in found.binary_data:
        raise UsageError(f"{at}: key {key} of ConfigMap {name} is binary; put the text under data")
    raise UsageError(
        f"{at}: ConfigMap {name} has no key {key}; {nearest(key, tuple(found.data)) if found.data else 'add it'}"
    )


def _find(name: str, namespace: str, at: str, maps: Iterable[ConfigMap]) -> ConfigMap:
    there = tuple(one for one in maps if one.namespace == namespace)
    for one in there:
        if one.name == name:
            return one
    known = tuple(one.name for one in there)
    hint = nearest(name, known) if known else "add it to the files"
    raise UsageError(f"{at}: there is no ConfigMap {name} in namespace {namespace}; {hint}")
