"""Are the CRDs there, and as new as this operator? An older CRD drops fields that it does not know (rule 30)."""

from __future__ import annotations

from typing import Any

import msgspec

from durable_coordinator.status import SessionStatus, SpaceStatus
from durable_operator.kube import GROUP, SESSIONS, SPACES, ApiError, Json, Kube, Resource

_WRITTEN: tuple[tuple[Resource, Any], ...] = ((SESSIONS, SessionStatus), (SPACES, SpaceStatus))


async def schema_problem(kube: Kube) -> str:
    """Empty if all is well; else the reason and what to do. Raises what a read raises, but for 404."""
    try:
        document = await kube.get_path(f"/openapi/v3/apis/{GROUP}/v1alpha1")
    except ApiError as error:
        if error.status != 404:
            raise
        return f"CRDMissing: the API server does not serve {GROUP}/v1alpha1: install the CRDs of this version"
    for resource, kind in _WRITTEN:
        schema = _schema_of(document, resource)
        if schema is None:
            return f"CRDMissing: there is no {resource.plural}.{GROUP}: install the CRDs of this version"
        lacks = missing_fields(schema["properties"].get("status") or {}, kind)
        if lacks:
            return f"CRDTooOld: {resource.plural}.{GROUP} lacks status.{lacks[0]}: update the CRDs to those of this version"
    return ""


def missing_fields(schema: Json, kind: Any) -> list[str]:
    """Fields that the operator writes and the schema does not have, as dotted paths."""
    properties = schema.get("properties") or {}
    lacks = []
    for field in msgspec.structs.fields(kind):
        found = properties.get(field.encode_name)
        if found is None:
            lacks.append(field.encode_name)
            continue
        inner = _struct_in(field.type)
        if inner is not None:
            lacks += [f"{field.encode_name}.{path}" for path in missing_fields(found.get("items") or found, inner)]
    return lacks


def _struct_in(type_: Any) -> Any:
    """The struct in an annotation such as `X | None` or `tuple[X, ...]`."""
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return type_
    for argument in getattr(type_, "__args__", ()):
        found = _struct_in(argument)
        if found is not None:
            return found
    return None


def _schema_of(document: Json, resource: Resource) -> Json | None:
    for schema in document.get("components", {}).get("schemas", {}).values():
        for kind in schema.get("x-kubernetes-group-version-kind") or ():
            if kind["group"] == resource.group and kind["kind"] == resource.kind:
                found: Json = schema
                return found
    return None
