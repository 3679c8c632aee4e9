"""Check a spec that a person wrote in a file, where no API server does: the exact field, its value, and what to do.

Types and limits come from the specs' own annotations; rules between fields are the CRDs' CEL rules over again.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from durable_base.errors import UsageError
from durable_coordinator.spec_common import EnvSource, Spec, TextSource
from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.spec_space import SpaceSpec

VALUE_SHOWN_MAX = 60
_YAML_WORDS = (
    ("int", "a whole number"),
    ("float", "a number"),
    ("str", "a string"),
    ("bool", "true or false"),
    ("array", "a list"),
    ("object", "a mapping of fields"),
    ("null", "nothing"),
)
SpecT = TypeVar("SpecT", bound=Spec)


@dataclass(frozen=True, slots=True)
class Problem:
    path: str
    what: str
    remedy: str


def checked(raw: object, kind: type[SpecT], where: str, path: str = "spec") -> SpecT:
    """`raw` as a spec. Raises UsageError: `where`, the field's path, its value where there is one, and the remedy."""
    problem = next(_problems(raw, kind, path), None)
    if problem is None:
        spec = msgspec.convert(raw, kind)
        problem = next(_between_fields(spec, path), None)
        if problem is None:
            return spec
    raise UsageError(f"{where}: {problem.path}: {problem.what}; {problem.remedy}")


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= VALUE_SHOWN_MAX else text[: VALUE_SHOWN_MAX - 3] + "..."


def nearest(name: str, known: tuple[str, ...]) -> str:
    """A remedy for a misspelt name."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


def _problems(raw: object, hint: Any, path: str) -> Iterator[Problem]:
    """What is wrong with a value by its type alone, outermost first."""
    hint = _without_none(hint)
    base = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    if isinstance(base, type) and issubclass(base, msgspec.Struct):
        yield from _struct_problems(raw, base, path)
        return
    if isinstance(raw, list) and typing.get_origin(base) is tuple:
        for index, item in enumerate(raw):
            yield from _problems(item, typing.get_args(base)[0], f"{path}[{index}]")
    choices = typing.get_args(base) if typing.get_origin(base) is Literal else ()
    try:
        msgspec.convert(raw, hint)
    except msgspec.ValidationError as error:
        said = str(error).split(" - at `")[0]
        if choices:
            remedy = nearest(str(raw), tuple(map(str, choices))) if isinstance(raw, str) else ""
            known = f"use one of {', '.join(map(str, choices))}"
            yield Problem(
                path, f"unknown value {shown(raw)}", known if remedy.startswith("known") else f"{remedy} {known}"
            )
        else:
            yield Problem(path, f"got {shown(raw)}", _in_words(said))


def _in_words(said: str) -> str:
    """A validator's sentence in the words of YAML, which the person wrote: not `int` and `str`."""
    for name, word in _YAML_WORDS:
        said = said.replace(f"`{name}`", word)
    return said[0].lower() + said[1:]


def _struct_problems(raw: object, kind: type[msgspec.Struct], path: str) -> Iterator[Problem]:
    if not isinstance(raw, dict):
        yield Problem(path, f"got {shown(raw)}", "expected a mapping of fields")
        return
    names = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    for key in raw:
        if key not in names:
            yield Problem(f"{path}.{key}", "unknown field", nearest(str(key), tuple(names)))
    hints = typing.get_type_hints(kind, include_extras=True)
    for info in msgspec.structs.fields(kind):
        wire = info.encode_name
        if wire not in raw:
            if info.required:
                yield Problem(f"{path}.{wire}", "is missing", "set it")
        elif raw[wire] is None:
            yield Problem(f"{path}.{wire}", "is empty", "give it a value or leave it out")
        else:
            yield from _problems(raw[wire], hints[names[wire]], f"{path}.{wire}")


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _between_fields(spec: Spec, path: str) -> Iterator[Problem]:
    if isinstance(spec, SessionSpec):
        yield from _session(spec, path)
    elif isinstance(spec, SpaceSpec):
        yield from _space(spec, path)


def _session(spec: SessionSpec, path: str) -> Iterator[Problem]:
    if spec.input is None and spec.input_from is None:
        yield Problem(
            f"{path}.input", "is missing", "say what the agent is to do in input, or name a ConfigMap in inputFrom"
        )
    if spec.input is not None and spec.input_from is not None:
        yield Problem(f"{path}.inputFrom", "stands beside input", "keep one of the two")
    yield from _one_key(spec.input_from, f"{path}.inputFrom")
    if spec.agent is not None and spec.agent_from is not None:
        yield Problem(f"{path}.agentFrom", "stands beside agent", "keep one of the two")
    yield from _one_key(spec.agent_from, f"{path}.agentFrom")
    if spec.agent is not None:
        yield from _one_key(spec.agent.script_from, f"{path}.agent.scriptFrom")
        if spec.agent.tools is not None and len(set(spec.agent.tools)) < len(spec.agent.tools):
            yield Problem(f"{path}.agent.tools", "names a tool twice", "name each once")
    if spec.space is None and spec.space_ref is None:
        yield Problem(
            f"{path}.space", "is missing", "give the session a Space of its own (space: {}), or name one in spaceRef"
        )
    if spec.space is not None and spec.space_ref is not None:
        yield Problem(f"{path}.spaceRef", "stands beside space", "keep one of the two")
    if spec.space is not None:
        yield from _space(spec.space, f"{path}.space")
    yield from _driver(spec, path)
    yield from _log(spec, path)
    if spec.retry.initial_seconds > spec.retry.max_seconds:
        remedy = f"set it to at most maxSeconds ({spec.retry.max_seconds})"
        yield Problem(f"{path}.retry.initialSeconds", f"got {spec.retry.initial_seconds}", remedy)


def _driver(spec: SessionSpec, path: str) -> Iterator[Problem]:
    names: set[str] = set()
    for index, variable in enumerate(spec.driver.env):
        at = f"{path}.driver.env[{index}]"
        if variable.name.startswith("CUA_"):
            yield Problem(f"{at}.name", f"got {shown(variable.name)}", "CUA_ names are the coordinator's: use another")
        if variable.name in names:
            yield Problem(f"{at}.name", f"{shown(variable.name)} stands there twice", "keep one of them")
        names.add(variable.name)
        if variable.value is not None and variable.value_from is not None:
            yield Problem(f"{at}.valueFrom", "stands beside value", "keep one of the two")
        yield from _one_key(variable.value_from, f"{at}.valueFrom")


def _log(spec: SessionSpec, path: str) -> Iterator[Problem]:
    limits = spec.transactional
    if limits is not None:
        if spec.mode == "checkpoint":
            yield Problem(f"{path}.transactional", "has no meaning in mode checkpoint", "remove it, or change mode")
        for index, pattern in enumerate(limits.exclude):
            if pattern.startswith("/") or ".." in pattern.split("/"):
                remedy = "write it relative to the workspace, without .."
                yield Problem(f"{path}.transactional.exclude[{index}]", f"got {shown(pattern)}", remedy)
    if spec.log is None:
        return
    if spec.log.storage == "ObjectStore" and spec.checkpoint_store_ref is None:
        yield Problem(f"{path}.log.storage", "ObjectStore needs a store", "name one in checkpointStoreRef")
    if spec.log.claim is not None and spec.log.storage != "PersistentVolumeClaim":
        yield Problem(f"{path}.log.claim", "goes with a claim only", "set log.storage to PersistentVolumeClaim")


def _space(spec: SpaceSpec, path: str) -> Iterator[Problem]:
    if spec.kind != "container" and spec.runtime_class_name is None:
        yield Problem(
            f"{path}.runtimeClassName", f"is missing for kind {spec.kind}", "name the cluster's RuntimeClass for it"
        )
    if (spec.storage.type == "Claim") != (spec.storage.claim is not None):
        yield Problem(f"{path}.storage.claim", "goes with type Claim, and only with it", "set both or neither")
    if spec.source is not None and spec.source.config_map_ref is not None and spec.source.git is not None:
        yield Problem(f"{path}.source.git", "stands beside configMapRef", "keep one of the two")


def _one_key(source: TextSource | EnvSource | None, path: str) -> Iterator[Problem]:
    if source is not None and (source.config_map_key_ref is None) == (source.secret_key_ref is None):
        yield Problem(path, "needs one reference", "set either configMapKeyRef or secretKeyRef")
