"""Follow a spec's references into ConfigMaps where no API server does it: input, agent, script, files, environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from durable_coordinator.manifest import ConfigMap, SessionManifest
from durable_coordinator.spec_session import AgentSpec
from durable_coordinator.spec_space import SpaceSpec


def resolve_input(session: SessionManifest, maps: Iterable[ConfigMap]) -> str:
    """The input text. Raises UsageError, as all of these do, naming the reference and the remedy."""
    raise NotImplementedError


def resolve_agent(session: SessionManifest, maps: Iterable[ConfigMap]) -> AgentSpec | None:
    """The agent, None if the driver brings its own."""
    raise NotImplementedError


def resolve_script(session: SessionManifest, agent: AgentSpec | None, maps: Iterable[ConfigMap]) -> str | None:
    """The scripted model's YAML, None if the agent names none."""
    raise NotImplementedError


def resolve_source(space: SpaceSpec, namespace: str, where: str, maps: Iterable[ConfigMap]) -> dict[str, bytes] | None:
    """File name -> content of a Space's `source.configMapRef`, None if it has none."""
    raise NotImplementedError


def resolve_env(session: SessionManifest, maps: Iterable[ConfigMap], environ: Mapping[str, str]) -> dict[str, str]:
    """`driver.env` as plain values; what comes from a Secret on a cluster is read from `environ` by the variable's own name."""
    raise NotImplementedError


def agent_document(agent: AgentSpec) -> str:
    """The agent as the YAML that DURABLE_AGENT names (without `scriptFrom`)."""
    raise NotImplementedError
