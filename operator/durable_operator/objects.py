"""Names, labels and owners of the objects that the operator makes, and how their times are read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from durable_operator.kube import Json, Resource

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "durable-sessions"
ROLE = "durablesessions.dev/role"  # driver or space
SESSION = "durablesessions.dev/session"
EPOCH = "durablesessions.dev/epoch"
SPACE = "durablesessions.dev/space"
GENERATION = "durablesessions.dev/generation"
EGRESS = "durablesessions.dev/egress"
SPEC_HASH = "durablesessions.dev/spec-hash"
SESSION_ID = "durablesessions.dev/session-id"  # whose log a claim holds
FINALIZER = "durablesessions.dev/cleanup"
DRIVER = "driver"  # the container's name, and the role
SPACE_CONTAINER = "space"
# Every pod of ours goes to this group: claims and Secret files are given to it.
FS_GROUP = 65532


def owner(resource: Resource, body: Json) -> list[Json]:
    """Controller reference, for garbage collection and `kubectl drain`; never blocking a deletion (rule 51)."""
    meta = body["metadata"]
    return [
        {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]


def controller_uid(body: Json) -> str:
    """The uid of the object's controller, empty for none."""
    for reference in body["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference["uid"])
    return ""


def managed(body: Json) -> bool:
    return label(body, MANAGED_BY) == MANAGER


def label(body: Json, name: str) -> str:
    return str((body["metadata"].get("labels") or {}).get(name, ""))


def number(text: str) -> int:
    """A label's number, 0 if it is none."""
    return int(text) if text.isascii() and text.isdigit() else 0


def unix(time: Any) -> float | None:
    """An API time as unix seconds."""
    return datetime.fromisoformat(time).timestamp() if time else None


def is_deleting(body: Json) -> bool:
    return bool(body["metadata"].get("deletionTimestamp"))
