"""Pieces that more than one spec has. Every limit here is the CRDs' (a unit test holds both together)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

API_VERSION = "durablesessions.dev/v1alpha1"
NAME_MAX = 47  # leaves room for `-e<epoch>` and `-g<generation>` in 63 characters
NAME_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX, pattern=NAME_PATTERN)]
ObjectName = Annotated[str, Meta(min_length=1, max_length=253)]  # of an object that is not ours: a ConfigMap, a Secret
Key = Annotated[str, Meta(min_length=1, max_length=253)]
Text = Annotated[str, Meta(min_length=1, max_length=65536)]
Image = Annotated[str, Meta(min_length=1, max_length=512)]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]


class Spec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    """Base of all specs: frozen, camelCase on the wire, unknown fields refused."""


class KeyRef(Spec, frozen=True):
    name: ObjectName
    key: Key
    optional: bool = False


class TextSource(Spec, frozen=True):
    """One key of a ConfigMap or of a Secret: exactly one of the two."""

    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class NameRef(Spec, frozen=True):
    name: ObjectName


class SpaceRef(Spec, frozen=True):
    name: Name


class PodTemplate(Spec, frozen=True):
    """Merged into the pod that is made; what the coordinator sets itself wins (rule 35). No meaning on one machine."""

    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
