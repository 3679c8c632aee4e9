"""Pieces that more than one spec has. Every limit here is the CRDs' (a unit test holds both together)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

API_VERSION = "durablesessions.dev/v1alpha1"
NAME_MAX = 47  # leaves room for `-e<epoch>` and `-g<generation>` in 63 characters
NAME_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
QUANTITY_PATTERN = "^[1-9][0-9]*([.][0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"

ObjectName = Annotated[str, Meta(min_length=1, max_length=253)]  # of an object that is not ours: a ConfigMap, a Secret
OurName = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
Key = Annotated[str, Meta(min_length=1, max_length=253)]
Text = Annotated[str, Meta(min_length=1, max_length=65536)]
Image = Annotated[str, Meta(min_length=1, max_length=512)]
Quantity = Annotated[str, Meta(max_length=32, pattern=QUANTITY_PATTERN)]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]


class Spec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base of all specs: frozen, camelCase on the wire. Files are checked for unknown fields by `spec_check`; an API server
    has done so before, and what a newer one knows besides must not stop an older coordinator."""


class KeyRef(Spec, frozen=True):
    name: ObjectName
    key: Key


class OptionalKeyRef(Spec, frozen=True):
    name: ObjectName
    key: Key
    optional: bool = False


class TextSource(Spec, frozen=True):
    """One key of a ConfigMap or of a Secret: exactly one of the two."""

    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class EnvSource(Spec, frozen=True):
    """The same for a variable, which may do without."""

    config_map_key_ref: OptionalKeyRef | None = None
    secret_key_ref: OptionalKeyRef | None = None


class NameRef(Spec, frozen=True):
    name: ObjectName


class OurRef(Spec, frozen=True):
    """A DurableSpace or CheckpointStore of the same namespace."""

    name: OurName


class Requests(Spec, frozen=True):
    storage: Quantity = "1Gi"


class ClaimResources(Spec, frozen=True):
    requests: Requests = Requests()


class Claim(Spec, frozen=True):
    """What a PersistentVolumeClaim asks for. Shared access modes are refused: SQLite would lose data."""

    storage_class_name: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    access_modes: Annotated[
        tuple[Literal["ReadWriteOnce", "ReadWriteOncePod"], ...], Meta(min_length=1, max_length=1)
    ] = ("ReadWriteOnce",)
    resources: ClaimResources = ClaimResources()


class PodTemplate(Spec, frozen=True):
    """Merged into the pod that is made; what the coordinator sets itself wins (rule 35). No meaning on one machine."""

    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
