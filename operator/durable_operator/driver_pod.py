"""The driver's pod: one life of one epoch. Pure: what is asked for goes in, the object to POST comes out.

`restartPolicy: Never`: another life is another epoch. No API token but the one for the report stream, whose audience the API
server refuses. Frozen processes are found by the kubelet's probe (rule 21), lost nodes by the tolerations' end (rule 6).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from durable_coordinator.spec_session import SessionSpec
from durable_operator import objects as o
from durable_operator import templates
from durable_operator.kube import SESSIONS, Json
from durable_operator.secrets import space_secret_name

STATE_DIR = "/var/lib/durable"
FILES_DIR = "/etc/durable/files"
SPACE_DIR = "/etc/durable/space"
REPORTS_DIR = "/etc/durable/reports"
HTTP_PORT = 7413
SPACE_PORT = 7411
STREAM_AUDIENCE = "durable"
STREAM_TOKEN_SECONDS = 3600
STARTUP_PERIOD = 5
RESTRICTED: Json = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True, kw_only=True)
class SpaceLink:
    """The Space that this drive works in."""

    name: str
    uid: str
    generation: int
    address: str  # of its pod
    kind: str


@dataclass(frozen=True, kw_only=True)
class DriverPod:
    """All that decides what the pod looks like."""

    session: Json  # the DurableSession's body
    spec: SessionSpec
    session_id: str
    name: str
    epoch: int
    attempt: int
    resume: bool
    lease_token: int
    image: str
    space: SpaceLink
    files: str  # the ConfigMap with input and agent, empty for none
    claim: str  # of the log
    stream: str  # address of the report stream, empty for none
    stream_name: str  # what its certificate proves
    avoid_node: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    allow_privileged: bool = False


def build_driver_pod(wanted: DriverPod) -> Json:
    """Raises TemplateRefusedError."""
    spec = wanted.spec
    meta = wanted.session["metadata"]
    pod: Json = {
        "metadata": {
            "name": wanted.name,
            "namespace": meta["namespace"],
            "labels": {
                o.MANAGED_BY: o.MANAGER,
                o.ROLE: o.DRIVER,
                o.SESSION: meta["name"],
                o.EPOCH: str(wanted.epoch),
            },
            "annotations": {o.SPEC_HASH: driver_hash(spec, wanted.image)},
            "ownerReferences": o.owner(SESSIONS, wanted.session),
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": spec.driver.termination_grace_period_seconds,
            "tolerations": tolerations(spec.unreachable_seconds),
            "securityContext": {"fsGroup": o.FS_GROUP, "fsGroupChangePolicy": "OnRootMismatch"},
            "containers": [_container(wanted)],
            "volumes": _volumes(wanted),
        },
    }
    if spec.driver.service_account_name:
        pod["spec"]["serviceAccountName"] = spec.driver.service_account_name
    if wanted.image_pull_secrets:
        pod["spec"]["imagePullSecrets"] = [{"name": name} for name in wanted.image_pull_secrets]
    if wanted.avoid_node:
        pod["spec"]["affinity"] = _away_from(wanted.avoid_node)
    return templates.apply(pod, spec.driver.pod_template, allow_privileged=wanted.allow_privileged)


def driver_hash(spec: SessionSpec, image: str) -> str:
    """Tells whether a pod was made from this `spec.driver` and image, as it was asked for."""
    made_of = (spec.driver, image)
    return hashlib.sha256(msgspec.json.encode(made_of, order="deterministic")).hexdigest()[:16]


def driver_image(spec: SessionSpec, pinned: str, default: str) -> str:
    """What a driver runs: the image pinned since one started (rule 36), the spec's, or the installation's."""
    return pinned or spec.driver.image or default


def tolerations(seconds: int) -> list[Json]:
    """The kubelet's word is enough after `seconds`, not after the 300 s that the API server would put in (rule 6)."""
    return [
        {
            "key": f"node.kubernetes.io/{taint}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": seconds,
        }
        for taint in ("unreachable", "not-ready")
    ]


def _away_from(node: str) -> Json:
    match = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}
    term = {"weight": 100, "preference": {"matchExpressions": [match]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}


def _container(wanted: DriverPod) -> Json:
    driver = wanted.spec.driver
    health = {"path": "/livez", "port": HTTP_PORT}
    container: Json = {
        "name": o.DRIVER,
        "image": wanted.image,
        "imagePullPolicy": driver.image_pull_policy or "IfNotPresent",
        "command": list(driver.command) or ["durable", "driver"],
        "env": _environment(wanted),
        "ports": [{"name": "http", "containerPort": HTTP_PORT}],
        "securityContext": RESTRICTED,
        "terminationMessagePolicy": "File",
        "startupProbe": {
            "httpGet": health,
            "periodSeconds": STARTUP_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": max(1, -(-driver.start_seconds // STARTUP_PERIOD)),
        },
        "livenessProbe": {
            "httpGet": health,
            "periodSeconds": max(1, wanted.spec.stall_seconds // 6),
            "timeoutSeconds": 5,
            "failureThreshold": 2,
            # A frozen process hears no SIGTERM: it is not given the grace that a living one gets.
            "terminationGracePeriodSeconds": 1,
        },
        "volumeMounts": [
            {"name": "durable-log", "mountPath": STATE_DIR},
            {"name": "durable-tmp", "mountPath": "/tmp"},
            {"name": "durable-files", "mountPath": FILES_DIR, "readOnly": True},
            {"name": "durable-space", "mountPath": SPACE_DIR, "readOnly": True},
        ],
    }
    if wanted.stream:
        container["volumeMounts"].append({"name": "durable-reports", "mountPath": REPORTS_DIR, "readOnly": True})
    if driver.args:
        container["args"] = list(driver.args)
    if driver.resources:
        container["resources"] = driver.resources
    return container


def _environment(wanted: DriverPod) -> list[Json]:
    spec, space, meta = wanted.spec, wanted.space, wanted.session["metadata"]
    values = {
        "CUA_SESSION": meta["name"],
        "CUA_SESSION_EPOCH": str(wanted.epoch),
        "CUA_SESSION_ATTEMPT": str(wanted.attempt),
        "CUA_SESSION_RESUME": "1" if wanted.resume else "0",
        # Of this session's own: a claim may hold the log of a former session of the same name (rule 14).
        "CUA_SESSION_STATE_DIR": f"{STATE_DIR}/{wanted.session_id}",
        "CUA_SESSION_SPACE": space.name,
        "CUA_SESSION_SPACE_ADDR": f"{_bracketed(space.address)}:{SPACE_PORT}",
        "CUA_SESSION_SPACE_LEASE": str(wanted.lease_token),
        "DURABLE_SESSION_UID": wanted.session_id,
        "DURABLE_SESSION_NAMESPACE": meta["namespace"],
        "DURABLE_SPACE_TOKEN_FILE": f"{SPACE_DIR}/token",
        "DURABLE_SPACE_CA_FILE": f"{SPACE_DIR}/ca.crt",
        "DURABLE_SPACE_GENERATION": str(space.generation),
        "DURABLE_SPACE_KIND": space.kind,
        "DURABLE_LOG": "sqlite:",
        "DURABLE_INPUT": f"{FILES_DIR}/input",
        "DURABLE_MODE": spec.mode,
        "DURABLE_STALL_SECS": str(spec.stall_seconds),
        "DURABLE_HTTP": f"0.0.0.0:{HTTP_PORT}",
    }
    if spec.transactional is not None:
        values["DURABLE_TRANSACTIONAL"] = msgspec.json.encode(spec.transactional).decode()
    if spec.agent is not None or spec.agent_from is not None:
        values["DURABLE_AGENT"] = f"{FILES_DIR}/agent.yaml"
    if spec.agent is not None and spec.agent.script_from is not None:
        values["DURABLE_SCRIPT"] = f"{FILES_DIR}/script.yaml"
    if spec.retry_token:
        values["DURABLE_RETRY_TOKEN"] = spec.retry_token
    if wanted.stream:
        values |= {
            "DURABLE_COORDINATOR": wanted.stream,
            "DURABLE_COORDINATOR_NAME": wanted.stream_name,
            "DURABLE_COORDINATOR_TOKEN_FILE": f"{REPORTS_DIR}/token",
            "DURABLE_COORDINATOR_CA_FILE": f"{SPACE_DIR}/ca.crt",
        }
    ours = [{"name": name, "value": value} for name, value in values.items()]
    theirs = [msgspec.to_builtins(variable) for variable in spec.driver.env if variable.name not in values]
    return theirs + ours


def _volumes(wanted: DriverPod) -> list[Json]:
    secret = space_secret_name(wanted.space.name, wanted.space.uid, wanted.space.generation)
    only = [{"key": key, "path": key} for key in ("token", "ca.crt")]
    volumes: list[Json] = [
        {"name": "durable-log", "persistentVolumeClaim": {"claimName": wanted.claim}},
        {"name": "durable-tmp", "emptyDir": {}},
        {"name": "durable-files", "projected": {"defaultMode": 0o440, "sources": _file_sources(wanted)}},
        {"name": "durable-space", "secret": {"secretName": secret, "items": only, "defaultMode": 0o440}},
    ]
    if wanted.stream:
        token = {"audience": STREAM_AUDIENCE, "expirationSeconds": STREAM_TOKEN_SECONDS, "path": "token"}
        sources = [{"serviceAccountToken": token}]
        volumes.append({"name": "durable-reports", "projected": {"defaultMode": 0o440, "sources": sources}})
    return volumes


def _file_sources(wanted: DriverPod) -> list[Json]:
    spec = wanted.spec
    sources: list[Json] = [{"configMap": {"name": wanted.files}}] if wanted.files else []
    named = (
        (spec.input_from, "input"),
        (spec.agent_from, "agent.yaml"),
        (spec.agent and spec.agent.script_from, "script.yaml"),
    )
    for source, path in named:
        if not source:
            continue
        if source.config_map_key_ref is not None:
            reference, kind = source.config_map_key_ref, "configMap"
        else:
            assert source.secret_key_ref is not None  # the CRD refuses neither and both
            reference, kind = source.secret_key_ref, "secret"
        sources.append({kind: {"name": reference.name, "items": [{"key": reference.key, "path": path}]}})
    return sources


def files_name(session: str, uid: str) -> str:
    """The ConfigMap of inline input and agent. Both are immutable, and the uid keeps a namesake's apart (rule 14)."""
    return f"{session}-files-{uid.replace('-', '')[:8]}"


def build_files(session: Json, spec: SessionSpec, agent_document: str | None) -> Json | None:
    """That ConfigMap, None if nothing is inline."""
    data: dict[str, Any] = {}
    if spec.input is not None:
        data["input"] = spec.input
    if agent_document is not None:
        data["agent.yaml"] = agent_document
    if not data:
        return None
    meta = session["metadata"]
    return {
        "metadata": {
            "name": files_name(meta["name"], meta["uid"]),
            "namespace": meta["namespace"],
            "labels": {o.MANAGED_BY: o.MANAGER, o.SESSION: meta["name"]},
            "ownerReferences": o.owner(SESSIONS, session),
        },
        "immutable": True,
        "data": data,
    }


def claim_name(session: str) -> str:
    return f"{session}-log"


def build_claim(session: Json, spec: SessionSpec) -> Json:
    """The log's claim. It goes with the session only if `deletionPolicy` says so, hence no owner reference."""
    meta = session["metadata"]
    claim: Json = msgspec.to_builtins(spec.log.claim) if spec.log is not None and spec.log.claim is not None else {}
    claim.setdefault("accessModes", ["ReadWriteOnce"])
    claim.setdefault("resources", {"requests": {"storage": "1Gi"}})
    return {
        "metadata": {
            "name": claim_name(meta["name"]),
            "namespace": meta["namespace"],
            "labels": {o.MANAGED_BY: o.MANAGER, o.SESSION: meta["name"]},
            "annotations": {o.SESSION_ID: spec.session_id or meta["uid"]},
        },
        "spec": claim,
    }


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
