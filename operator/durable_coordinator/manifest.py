"""Manifests as files: DurableSession, DurableSpace and ConfigMap documents of one or more YAML texts."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from durable_base.errors import UsageError
from durable_coordinator.spec_check import checked, nearest, shown
from durable_coordinator.spec_common import API_VERSION, NAME_MAX, NAME_PATTERN
from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.spec_space import SpaceSpec

DEFAULT_NAMESPACE = "default"
OUR_KINDS = ("DurableSession", "DurableSpace", "CheckpointStore")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigMap:
    namespace: str
    name: str
    data: dict[str, str]
    binary_data: dict[str, bytes]
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionManifest:
    namespace: str
    name: str
    spec: SessionSpec
    where: str = ""  # source and document, for error messages


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceManifest:
    namespace: str
    name: str
    spec: SpaceSpec
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """`ignored`: documents of kinds that have no meaning here (a Secret, a CheckpointStore), so that a command can say so."""

    sessions: tuple[SessionManifest, ...] = ()
    spaces: tuple[SpaceManifest, ...] = ()
    config_maps: tuple[ConfigMap, ...] = ()
    ignored: tuple[str, ...] = ()


@dataclass(slots=True)
class _Read:
    sessions: list[SessionManifest] = field(default_factory=list)
    spaces: list[SpaceManifest] = field(default_factory=list)
    config_maps: list[ConfigMap] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    seen: dict[tuple[str, str, str], str] = field(default_factory=dict)


def load_manifests(texts: Iterable[tuple[str, str]]) -> Manifests:
    """Read (source name, YAML text) pairs. Raises UsageError: source, document, field path, value and remedy in one line."""
    read = _Read()
    for source, text in texts:
        for number, document in _documents(source, text):
            _add(read, f"{source}, document {number}", document)
    return Manifests(
        sessions=tuple(read.sessions),
        spaces=tuple(read.spaces),
        config_maps=tuple(read.config_maps),
        ignored=tuple(read.ignored),
    )


def _documents(source: str, text: str) -> Iterator[tuple[int, Any]]:
    """The documents that are not empty, numbered from 1."""
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UsageError(f"{source}{line}: not YAML: {problem}; repair it there") from None
    yield from ((number, one) for number, one in enumerate(documents, 1) if one is not None)


def _add(read: _Read, where: str, document: object) -> None:
    if not isinstance(document, dict):
        raise UsageError(
            f"{where}: got {shown(document)}; expected a manifest with apiVersion, kind, metadata and spec"
        )
    kind = _kind(where, document)
    namespace, name = _identity(where, kind, document)
    where = f"{where} ({kind} {name})"
    known = read.seen.setdefault((kind, namespace, name), where)
    if known != where:
        raise UsageError(f"{where}: metadata.name: the same object stands in {known}; rename or remove one of them")
    match kind:
        case "DurableSession":
            _only(where, document, ("apiVersion", "kind", "metadata", "spec", "status"))
            spec = checked(_spec(where, document), SessionSpec, where)
            read.sessions.append(SessionManifest(namespace=namespace, name=name, spec=spec, where=where))
        case "DurableSpace":
            _only(where, document, ("apiVersion", "kind", "metadata", "spec", "status"))
            place = checked(document.get("spec", {}), SpaceSpec, where)
            read.spaces.append(SpaceManifest(namespace=namespace, name=name, spec=place, where=where))
        case "ConfigMap":
            read.config_maps.append(_config_map(where, namespace, name, document))
        case _:
            read.ignored.append(where)


def _kind(where: str, document: dict[Any, Any]) -> str:
    kind, version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        missing = "kind" if not isinstance(kind, str) else "apiVersion"
        raise UsageError(f"{where}: {missing}: is missing; every document names its apiVersion and kind")
    group = version.partition("/")[0]
    if group == API_VERSION.partition("/")[0]:
        if kind not in OUR_KINDS:
            raise UsageError(f"{where}: kind: unknown value {shown(kind)}; {nearest(kind, OUR_KINDS)}")
        if version != API_VERSION:
            raise UsageError(f"{where}: apiVersion: unknown value {shown(version)}; use {API_VERSION}")
    elif kind in OUR_KINDS:
        raise UsageError(f"{where}: apiVersion: got {shown(version)}; a {kind} has {API_VERSION}")
    elif kind == "ConfigMap" and version != "v1":
        raise UsageError(f"{where}: apiVersion: got {shown(version)}; a ConfigMap has v1")
    return kind


def _identity(where: str, kind: str, document: dict[Any, Any]) -> tuple[str, str]:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        value = metadata.get("name") if isinstance(metadata, dict) else None
        got = "is missing" if value is None else f"got {shown(value)}"
        raise UsageError(f"{where} ({kind}): metadata.name: {got}; give the object a name (a string)")
    name, namespace = metadata["name"], metadata.get("namespace", DEFAULT_NAMESPACE)
    if not isinstance(namespace, str) or not namespace:
        raise UsageError(
            f"{where} ({kind} {name}): metadata.namespace: got {shown(namespace)}; give a name or leave it out"
        )
    if kind in OUR_KINDS and (len(name) > NAME_MAX or re.fullmatch(NAME_PATTERN[1:-1], name) is None):
        rule = f"use at most {NAME_MAX} lower-case letters, digits and hyphens, beginning and ending with a letter or digit"
        raise UsageError(f"{where} ({kind}): metadata.name: got {shown(name)}; {rule}")
    return namespace, name


def _spec(where: str, document: dict[Any, Any]) -> object:
    if "spec" not in document:
        raise UsageError(f"{where}: spec: is missing; a session needs at least input, agent and space")
    return document["spec"]


def _only(where: str, document: dict[Any, Any], known: tuple[str, ...]) -> None:
    for key in document:
        if key not in known:
            raise UsageError(f"{where}: {key}: unknown field; {nearest(str(key), known)}")


def _config_map(where: str, namespace: str, name: str, document: dict[Any, Any]) -> ConfigMap:
    data: dict[str, str] = {}
    for key, value in _mapping(where, "data", document).items():
        if not isinstance(value, str):
            raise UsageError(f"{where}: data.{key}: got {shown(value)}; a ConfigMap holds strings: put it in quotes")
        data[str(key)] = value
    binary: dict[str, bytes] = {}
    for key, value in _mapping(where, "binaryData", document).items():
        try:
            binary[str(key)] = base64.b64decode("".join(value.split()), validate=True)
        except (AttributeError, ValueError, binascii.Error):
            raise UsageError(f"{where}: binaryData.{key}: not base64; encode it, or use data for text") from None
    return ConfigMap(namespace=namespace, name=name, data=data, binary_data=binary, where=where)


def _mapping(where: str, field_name: str, document: dict[Any, Any]) -> dict[Any, Any]:
    value = document.get(field_name) or {}
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {field_name}: got {shown(value)}; expected a mapping of keys to values")
    return value
