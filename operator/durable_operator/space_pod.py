"""The Space's pod: one generation. Pure, as the driver's.

`restartPolicy: Always` with a supervisor as PID 1: the daemon's death is no end of the Space (rule 5). A readiness probe and no
liveness probe: killing a Space never makes it better. Its token and certificate are this generation's alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from durable_coordinator.spec_space import SpaceSpec
from durable_operator import objects as o
from durable_operator import templates
from durable_operator.driver_pod import RESTRICTED, SPACE_PORT, tolerations
from durable_operator.kube import SPACES, Json
from durable_operator.secrets import space_secret_name

DATA_DIR = "/var/lib/durable-space"
SECRET_DIR = "/etc/durable-space"
SOURCE_DIR = "/etc/durable-source"
HTTP_PORT = 7412
GRACE_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class SpacePodWanted:
    """All that decides what the pod looks like."""

    space: Json  # the DurableSpace's body
    spec: SpaceSpec
    name: str
    generation: int
    epoch_floor: int
    fill: bool
    image: str
    image_pull_secrets: tuple[str, ...] = ()
    allow_privileged: bool = False


def build_space_pod(wanted: SpacePodWanted) -> Json:
    """Raises TemplateRefusedError."""
    spec = wanted.spec
    meta = wanted.space["metadata"]
    pod: Json = {
        "metadata": {
            "name": wanted.name,
            "namespace": meta["namespace"],
            "labels": {
                o.MANAGED_BY: o.MANAGER,
                o.ROLE: o.SPACE_CONTAINER,
                o.SPACE: meta["name"],
                o.GENERATION: str(wanted.generation),
                o.EGRESS: spec.egress,
            },
            "annotations": {o.SPEC_HASH: space_hash(spec, wanted.image)},
            "ownerReferences": o.owner(SPACES, wanted.space),
        },
        "spec": {
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "tolerations": tolerations(spec.unreachable_seconds),
            "securityContext": {"fsGroup": o.FS_GROUP, "fsGroupChangePolicy": "OnRootMismatch"},
            "containers": [_container(wanted)],
            "volumes": _volumes(wanted),
        },
    }
    if spec.runtime_class_name:
        pod["spec"]["runtimeClassName"] = spec.runtime_class_name
    if wanted.image_pull_secrets:
        pod["spec"]["imagePullSecrets"] = [{"name": name} for name in wanted.image_pull_secrets]
    if _source(wanted):
        pod["spec"]["initContainers"] = [_seed(wanted)]
    return templates.apply(pod, spec.pod_template, allow_privileged=wanted.allow_privileged)


def space_hash(spec: SpaceSpec, image: str) -> str:
    """Tells whether a pod was made from this spec and image; what takes effect at once is left out.

    The image is hashed as it was asked for: what a webhook makes of it in the pod would differ for ever.
    """
    lasting = msgspec.structs.replace(spec, image=image, egress="None", unreachable_seconds=60, idle_seconds=None)
    return hashlib.sha256(msgspec.json.encode(lasting, order="deterministic")).hexdigest()[:16]


def _container(wanted: SpacePodWanted) -> Json:
    spec = wanted.spec
    container: Json = {
        "name": o.SPACE_CONTAINER,
        "image": wanted.image,
        "imagePullPolicy": spec.image_pull_policy or "IfNotPresent",
        "command": [
            *("durable", "space", "supervise"),
            *("--data", DATA_DIR),
            *("--workspace", spec.workspace),
            *("--listen", f"0.0.0.0:{SPACE_PORT}"),
            *("--http", f"0.0.0.0:{HTTP_PORT}"),
            *("--name", wanted.space["metadata"]["name"]),
            *("--generation", str(wanted.generation)),
            *("--epoch-floor", str(wanted.epoch_floor)),
            *("--token-file", f"{SECRET_DIR}/token"),
            *("--tls-cert", f"{SECRET_DIR}/tls.crt"),
            *("--tls-key", f"{SECRET_DIR}/tls.key"),
            *("--kill-mechanism", spec.epoch_kill),
        ],
        "ports": [
            {"name": "space", "containerPort": SPACE_PORT},
            {"name": "http", "containerPort": HTTP_PORT},
        ],
        "securityContext": RESTRICTED,
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": HTTP_PORT},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        "volumeMounts": [
            {"name": "durable-data", "mountPath": DATA_DIR},
            {"name": "durable-workspace", "mountPath": spec.workspace},
            {"name": "durable-secret", "mountPath": SECRET_DIR, "readOnly": True},
            {"name": "durable-tmp", "mountPath": "/tmp"},
        ],
    }
    if spec.resources:
        container["resources"] = spec.resources
    return container


def _seed(wanted: SpacePodWanted) -> Json:
    """Fills a workspace placed from scratch, before any call; does nothing to one that holds anything."""
    workspace = wanted.spec.workspace
    return {
        "name": "seed",
        "image": wanted.image,
        "imagePullPolicy": wanted.spec.image_pull_policy or "IfNotPresent",
        "command": [
            *("durable", "space", "seed", "--from", SOURCE_DIR),
            *(
                "--workspace",
                workspace,
                "--data",
                DATA_DIR,
            ),  # where it is marked as done, whatever the agent empties later
        ],
        "securityContext": RESTRICTED,
        "volumeMounts": [
            {"name": "durable-workspace", "mountPath": workspace},
            {"name": "durable-data", "mountPath": DATA_DIR},
            {"name": "durable-source", "mountPath": SOURCE_DIR, "readOnly": True},
        ],
    }


def _volumes(wanted: SpacePodWanted) -> list[Json]:
    meta, storage = wanted.space["metadata"], wanted.spec.storage
    secret = space_secret_name(meta["name"], meta["uid"], wanted.generation)
    volumes: list[Json] = [
        {"name": "durable-data", "emptyDir": {}},
        {"name": "durable-workspace", "emptyDir": {"sizeLimit": storage.size_limit} if storage.size_limit else {}},
        {"name": "durable-secret", "secret": {"secretName": secret, "defaultMode": 0o440}},
        {"name": "durable-tmp", "emptyDir": {}},
    ]
    if source := _source(wanted):
        volumes.append({"name": "durable-source", "configMap": {"name": source, "defaultMode": 0o644}})
    return volumes


def _source(wanted: SpacePodWanted) -> str:
    source = wanted.spec.source
    return source.config_map_ref.name if wanted.fill and source and source.config_map_ref else ""
