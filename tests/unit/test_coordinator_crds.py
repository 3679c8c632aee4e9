"""The specs and statuses in Python and the CRDs tell the same story: fields, defaults, limits, enums."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from durable_coordinator.conditions import SESSION_REASONS, SPACE_REASONS
from durable_coordinator.exits import REASONS
from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.spec_space import SpaceSpec
from durable_coordinator.status import SessionStatus, SpaceStatus, at, to_dict

CRDS = Path(__file__).parents[2] / "crds"
LIMITS = ("minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems")
KINDS = {
    "session.spec": ("durablesession.yaml", "spec", SessionSpec),
    "session.status": ("durablesession.yaml", "status", SessionStatus),
    "space.spec": ("durablespace.yaml", "spec", SpaceSpec),
    "space.status": ("durablespace.yaml", "status", SpaceStatus),
}


def crd_schema(file: str, part: str) -> dict[str, Any]:
    crd = yaml.safe_load((CRDS / file).read_text())
    (version,) = crd["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"][part]
    return schema


def ours(kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    (schema,), components = msgspec.json.schema_components([kind], ref_template="{name}")
    return components[schema["$ref"]], components


def leaf(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """Without the None of an optional field, and with references followed."""
    for part in schema.get("anyOf", ()):
        if part != {"type": "null"}:
            return leaf({**schema, **part, "anyOf": ()}, components)
    if "$ref" in schema:
        return {**components[schema["$ref"]], **{key: schema[key] for key in ("default",) if key in schema}}
    return schema


def differences(
    mine: dict[str, Any], crd: dict[str, Any], components: dict[str, Any], path: str, limits: bool
) -> list[str]:
    mine = leaf(mine, components)
    found: list[str] = []
    if limits:
        found += [f"{path}: {key} {mine.get(key)} != {crd.get(key)}" for key in LIMITS if mine.get(key) != crd.get(key)]
        if mine.get("enum") is not None and sorted(mine["enum"]) != sorted(crd.get("enum", ())):
            found.append(f"{path}: enum {mine['enum']} != {crd.get('enum')}")
        if sorted(mine.get("required", ())) != sorted(crd.get("required", ())):
            found.append(f"{path}: required {mine.get('required')} != {crd.get('required')}")
        simple = mine.get("default") not in (None, "", (), [], {}, False) and not isinstance(mine.get("default"), dict)
        default = list(mine["default"]) if isinstance(mine.get("default"), tuple) else mine.get("default")
        if (simple or "default" in crd) and not isinstance(crd.get("default"), dict) and default != crd.get("default"):
            found.append(f"{path}: default {default} != {crd.get('default')}")
    if "properties" in mine and "properties" in crd:
        both = mine["properties"].keys() | crd["properties"].keys()
        for name in sorted(both):
            if name not in mine["properties"] or name not in crd["properties"]:
                found.append(f"{path}.{name}: only in {'the CRD' if name in crd['properties'] else 'Python'}")
            else:
                found += differences(
                    mine["properties"][name], crd["properties"][name], components, f"{path}.{name}", limits
                )
    if mine.get("type") == "array" and "items" in crd:
        found += differences(mine["items"], crd["items"], components, f"{path}[]", limits)
    return found


@pytest.mark.parametrize(("file", "part", "kind"), KINDS.values(), ids=KINDS)
def test_the_fields_and_limits_in_python_are_those_of_the_crd(file: str, part: str, kind: Any) -> None:
    mine, components = ours(kind)
    assert differences(mine, crd_schema(file, part), components, part, limits=part == "spec") == []


def test_a_parents_default_in_the_crd_is_what_python_makes_of_an_empty_object() -> None:
    """A default on a parent has to be spelt out in a CRD; it must say what the children's defaults say."""
    for name, value in crd_schema("durablesession.yaml", "spec")["properties"].items():
        if isinstance(value.get("default"), dict):
            made = msgspec.convert({name: {}}, SessionSpec)
            field = next(one.name for one in msgspec.structs.fields(SessionSpec) if one.encode_name == name)
            given = msgspec.convert({name: value["default"]}, SessionSpec)
            assert getattr(made, field) == getattr(given, field), name


def test_every_exit_reason_is_one_that_the_crd_admits() -> None:
    reasons = crd_schema("durablesession.yaml", "status")["properties"]["lastExit"]["properties"]["reason"]["enum"]
    assert set(reasons) == REASONS


def test_every_condition_reason_is_one_that_the_crd_admits() -> None:
    for table in (SESSION_REASONS, SPACE_REASONS):
        for by_status in table.values():
            for reasons in by_status.values():
                assert all(reason.isalpha() and reason[0].isupper() and len(reason) <= 63 for reason in reasons)


def test_a_status_time_is_rfc_3339_in_utc() -> None:
    wire = to_dict(SessionStatus(epoch=1, start_time=at(1_700_000_000.25)))
    assert wire == {"epoch": 1, "startTime": "2023-11-14T22:13:20.250000Z"}
