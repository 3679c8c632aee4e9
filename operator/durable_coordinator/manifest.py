"""Manifests as files: DurableSession, DurableSpace and ConfigMap documents of one or more YAML texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.spec_space import SpaceSpec


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
    sessions: tuple[SessionManifest, ...] = ()
    spaces: tuple[SpaceManifest, ...] = ()
    config_maps: tuple[ConfigMap, ...] = ()


def load_manifests(texts: Iterable[tuple[str, str]]) -> Manifests:
    """Read (source name, YAML text) pairs. Raises UsageError: source, document, field path, value and remedy in one line."""
    raise NotImplementedError
