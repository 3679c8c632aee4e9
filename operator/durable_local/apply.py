"""Take manifests in: what `kubectl apply` and the API server's rules do on a cluster.

Everything that can be wrong is looked at before anything is made, so that a refused manifest leaves nothing behind.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from durable_base.errors import UsageError
from durable_coordinator.manifest import Manifests, SessionManifest, SpaceManifest
from durable_coordinator.resolve import (
    agent_document,
    resolve_agent,
    resolve_env,
    resolve_input,
    resolve_script,
    resolve_source,
)
from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.spec_space import SpaceSpec
from durable_local.layout import command, session_home
from durable_local.sessions import KIND, Inputs
from durable_local.store import Record, Store

# The fields that the CRD's transition rules call immutable.
_IMMUTABLE = (
    *("input", "input_from", "agent", "agent_from", "space", "space_ref", "mode", "transactional"),
    *("checkpoint_store_ref", "log", "fork_from", "session_id"),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One session with all that its references lead to. `files` fill a workspace that is placed from scratch."""

    manifest: SessionManifest
    inputs: Inputs
    space: str
    space_spec: SpaceSpec | None  # of a shared Space; None: the session's own, which its plan creates
    files: Mapping[str, bytes]


def resolve(manifests: Manifests, environ: Mapping[str, str]) -> tuple[Wanted, ...]:
    """Raise UsageError, naming the field and the remedy, for what can't be had or is not possible on one machine."""
    if not manifests.sessions:
        raise UsageError("no DurableSession among the manifests: add a document of kind DurableSession")
    names: dict[str, SessionManifest] = {}
    for session in manifests.sessions:
        if session.name in names:
            raise UsageError(
                f"{session.where}: the session {session.name} is in {names[session.name].where} too; rename one"
            )
        names[session.name] = session
    return tuple(_resolve_session(session, manifests, environ) for session in manifests.sessions)


def _resolve_session(session: SessionManifest, manifests: Manifests, environ: Mapping[str, str]) -> Wanted:
    spec, maps = session.spec, manifests.config_maps
    _possible_here(session)
    shared = _shared_space(session, manifests)
    space_spec = shared.spec if shared is not None else spec.space_spec()
    assert space_spec is not None, "a manifest has space or spaceRef"
    at = f"{shared.where}: spec" if shared is not None else f"{session.where}: spec.space"
    _space_possible_here(space_spec, at)
    agent = resolve_agent(session, maps)
    if agent is None and not spec.driver.command:
        raise UsageError(
            f"{session.where}: spec.agent is missing, and spec.driver.command names no driver of your own; give one of them"
        )
    inputs = Inputs(
        text=resolve_input(session, maps),
        agent=agent_document(agent) if agent is not None else None,
        script=resolve_script(session, agent, maps),
        env=resolve_env(session, maps, environ),
        command=(spec.driver.command or (sys.executable, "-m", "durable_cli", "driver")) + spec.driver.args,
    )
    files = resolve_source(space_spec, session.namespace, at, maps) or {}
    return Wanted(session, inputs, spec.space_name(session.name), shared.spec if shared is not None else None, files)


def _shared_space(session: SessionManifest, manifests: Manifests) -> SpaceManifest | None:
    if session.spec.space_ref is None:
        return None
    for space in manifests.spaces:
        if (space.namespace, space.name) == (session.namespace, session.spec.space_ref.name):
            return space
    raise UsageError(
        f"{session.where}: spec.spaceRef.name: no DurableSpace {session.spec.space_ref.name!r} among the manifests; "
        "add its document, or give `space` instead"
    )


def _possible_here(session: SessionManifest) -> None:
    spec = session.spec
    refused = {
        "checkpointStoreRef": spec.checkpoint_store_ref is not None,
        "log.storage": spec.log is not None and spec.log.storage == "ObjectStore",
        "forkFrom": spec.fork_from is not None,
    }
    for field, given in refused.items():
        if given:
            raise UsageError(
                f"{session.where}: spec.{field} has no meaning on one machine yet; remove it, or use a cluster"
            )


def _space_possible_here(spec: SpaceSpec, at: str) -> None:
    if spec.kind != "container" or spec.daemon != "Durable":
        raise UsageError(
            f"{at}.kind: a Space of kind {spec.kind} with daemon {spec.daemon} needs a cluster; on one machine a Space is a "
            "folder: use kind container and daemon Durable"
        )
    if spec.source is not None and spec.source.git is not None:
        raise UsageError(
            f"{at}.source.git is not possible on one machine yet; give {at.rpartition(' ')[2]}.source.configMapRef"
        )


def admit(state: Path, wanted: Wanted, store: Store) -> Record:
    """Create the session, or bring its spec up to date. Raise UsageError for a change of what is immutable."""
    # Nobody is there to delete a finished session after a time: here it stays until `durable delete`.
    spec = replace(wanted.manifest.spec, ttl_seconds_after_finished=None)
    record = store.read(KIND, wanted.manifest.name)
    if record is None:
        return store.create(KIND, wanted.manifest.name, msgspec.json.encode(spec).decode())
    before = msgspec.json.decode(record.spec, type=SessionSpec)
    for name in _IMMUTABLE:
        if getattr(before, name) != getattr(spec, name):
            field = SessionSpec.__struct_encode_fields__[SessionSpec.__struct_fields__.index(name)]
            home = session_home(state, wanted.manifest.name).path
            raise UsageError(
                f"{wanted.manifest.where}: spec.{field} is immutable, and the session in {home} has another one. Rename the "
                "session, name another folder with --state DIR, or forget the old one: "
                + command(state, "delete", wanted.manifest.name)
            )
    # What `durable suspend` and `durable retry` set stays, as with `kubectl apply` of a file that does not name the field.
    kept = {"operating_mode": "Running", "retry_token": ""}
    spec = replace(
        spec, **{name: getattr(before, name) for name, default in kept.items() if getattr(spec, name) == default}
    )
    text = msgspec.json.encode(spec).decode()
    return record if text == record.spec else store.write(record, spec=text)
