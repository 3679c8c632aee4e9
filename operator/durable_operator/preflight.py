"""What can be seen to be wrong before a pod is made: features that this version lacks, references to nothing.

Each finding says what is wrong, where, and who must do what: a condition shows it, and the session waits (`Blocked`).
"""

from __future__ import annotations

from durable_coordinator.facts import Obstacle
from durable_coordinator.spec_common import TextSource
from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.spec_space import SpaceSpec
from durable_operator import objects as o
from durable_operator.driver_pod import claim_name
from durable_operator.kube import CLAIMS, CONFIG_MAPS, Json, Kube

RETRY_SECONDS = 15.0
# What the product's own driver knows; a test holds this equal to the driver's table.
PROVIDERS = ("scripted", "openai-compatible", "openai", "anthropic", "google")


class Preflight:
    """Reads ConfigMaps and claims; never a Secret (rule 20): what is missing there, the kubelet tells."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def session(self, namespace: str, spec: SessionSpec) -> Obstacle | None:
        """Of a session that is about to drive."""
        missing = _unsupported(spec)
        if missing is not None:
            return missing
        script = spec.agent.script_from if spec.agent is not None else None
        named = (("inputFrom", spec.input_from), ("agentFrom", spec.agent_from), ("agent.scriptFrom", script))
        for field, source in named:
            found = await self._text(namespace, f"spec.{field}", source)
            if found is not None:
                return found
        return None

    async def space(self, namespace: str, spec: SpaceSpec) -> Obstacle | None:
        """Of a Space that is about to be placed."""
        if spec.daemon == "Cua":
            return _blocked("PodRejected", "spec.daemon Cua is not supported by this version: use Durable")
        if spec.storage.type == "Claim":
            return _blocked("PodRejected", "spec.storage.type Claim is not supported by this version: use Ephemeral")
        if spec.source is None:
            return None
        if spec.source.git is not None:
            return _blocked("PodRejected", "spec.source.git is not supported by this version: use configMapRef")
        reference = spec.source.config_map_ref
        if reference is not None and await self._kube.get(CONFIG_MAPS, namespace, reference.name) is None:
            text = (
                f"spec.source.configMapRef: there is no ConfigMap {reference.name} in namespace {namespace}: create it"
            )
            return Obstacle(reason="PodRejected", message=text, retry_seconds=RETRY_SECONDS)
        return None

    async def log_is_gone(self, session: Json, spec: SessionSpec) -> bool:
        """No claim holds this session's log any more, or never did."""
        meta = session["metadata"]
        claim = await self._kube.get(CLAIMS, meta["namespace"], claim_name(meta["name"]))
        return claim is None or o.is_deleting(claim) or not is_log_of(claim, session, spec)

    async def _text(self, namespace: str, field: str, source: TextSource | None) -> Obstacle | None:
        if source is None or source.config_map_key_ref is None:
            return None
        name, key = source.config_map_key_ref.name, source.config_map_key_ref.key
        found = await self._kube.get(CONFIG_MAPS, namespace, name)
        if found is None:
            text = f"{field}: there is no ConfigMap {name} in namespace {namespace}: create it"
        elif key not in (found.get("data") or {}) and key not in (found.get("binaryData") or {}):
            text = f"{field}: ConfigMap {name} has no key {key}: add it"
        else:
            return None
        return Obstacle(reason="ConfigError", message=text, retry_seconds=RETRY_SECONDS)


def is_log_of(claim: Json, session: Json, spec: SessionSpec) -> bool:
    """The claim was made for this very session, not for a former one of its name."""
    made_for = (claim["metadata"].get("annotations") or {}).get(o.SESSION_ID)
    return o.managed(claim) and made_for == (spec.session_id or session["metadata"]["uid"])


def _unsupported(spec: SessionSpec) -> Obstacle | None:
    if spec.checkpoint_store_ref is not None:
        return _blocked(
            "StoreNotReady", "spec.checkpointStoreRef is not supported by this version: create the session without it"
        )
    if spec.fork_from is not None:
        return _blocked("ForkSourceNotFound", "spec.forkFrom is not supported by this version: remove it")
    if spec.driver.command:
        return None  # a driver of the user's own says itself what it understands
    if spec.mode == "checkpoint":
        text = (
            "spec.mode checkpoint is not supported by this version: create the session with mode auto or transactional"
        )
        return _blocked("ConfigError", text)
    return _unknown_model(spec) if spec.driver.image is None else None


def _unknown_model(spec: SessionSpec) -> Obstacle | None:
    """What the driver would refuse in its first drive. Agents are immutable: there is nothing to wait for but a new session."""
    if spec.agent is None:
        return None
    model, wrong = spec.agent.model, ""
    if model.provider not in PROVIDERS:
        wrong = f"provider: there is no provider {model.provider!r}; use one of {', '.join(PROVIDERS)}"
    elif model.name is None and model.provider != "scripted":
        wrong = f"name: the provider {model.provider} needs the name of a model"
    elif model.base_url is None and model.provider == "openai-compatible":
        wrong = "baseUrl: the provider openai-compatible needs the address of its API, like https://models.example/v1"
    return _blocked("ConfigError", f"spec.agent.model.{wrong} (in a new session)") if wrong else None


def _blocked(reason: str, message: str) -> Obstacle:
    return Obstacle(reason=reason, message=message, retry_seconds=300.0)
