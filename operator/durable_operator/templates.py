"""What a pod template of a user may add to a pod of ours, and what it may not (rule 35).

The operator's own fields win: container names and commands, restart policy, the environment's CUA_ names, labels and volumes
with our prefix. Adding containers, volumes, affinity, node selectors, priority classes is free. What would leave the sandbox
(host namespaces, host paths, privileges, a probe of another host) is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from durable_coordinator.spec_common import PodTemplate
from durable_operator.kube import Json

PREFIX = "durable-"
LABEL_PREFIX = "durablesessions.dev/"
_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
_JOINED = ("tolerations", "volumeMounts")  # lists whose items have no name of their own
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


class TemplateRefusedError(Exception):
    """The template asks for what the operator does not hand out; the message names the field and the remedy."""


def apply(pod: Json, template: PodTemplate | None, *, allow_privileged: bool) -> Json:
    """`pod` with the template's additions. Lists of named things are joined by name, and ours win over the template's."""
    if template is None:
        return pod
    spec = copy.deepcopy(template.spec)
    if not allow_privileged:
        for problem in _forbidden(spec):
            raise TemplateRefusedError(f"podTemplate.spec.{problem} is not allowed: remove it")
    for volume in spec.get("volumes") or ():
        if str(volume.get("name", "")).startswith(PREFIX):
            raise TemplateRefusedError(f"podTemplate.spec.volumes: names that begin with {PREFIX} are the operator's")
    meta = copy.deepcopy(template.metadata)
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if not k.startswith(LABEL_PREFIX)}
    annotations = {k: v for k, v in (meta.get("annotations") or {}).items() if not k.startswith(LABEL_PREFIX)}
    return {
        **pod,
        "metadata": {
            **pod["metadata"],
            "labels": labels | pod["metadata"].get("labels", {}),
            "annotations": annotations | pod["metadata"].get("annotations", {}),
        },
        "spec": _merge(spec, pod["spec"]),
    }


def _merge(theirs: Any, ours: Any, field: str = "") -> Any:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return theirs | {
            key: _merge(theirs[key], value, key) if key in theirs else value for key, value in ours.items()
        }
    if field in _JOINED and isinstance(theirs, list) and isinstance(ours, list):
        return ours + [item for item in theirs if item not in ours]
    if _named(theirs) and _named(ours):
        by_name = {item["name"]: item for item in theirs}
        first = [_merge(by_name.pop(item["name"]), item) if item["name"] in by_name else item for item in ours]
        return first + list(by_name.values())
    return ours


def _named(value: Any) -> bool:
    """A list whose items have names that tell them apart."""
    return isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value)


def _forbidden(spec: Json) -> Iterator[str]:
    for field in _HOST_NAMESPACES:
        if spec.get(field):
            yield field
    for volume in spec.get("volumes") or ():
        if "hostPath" in volume:
            yield f"volumes[{volume.get('name', '')}].hostPath"
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(kind) or ():
            where = f"{kind}[{container.get('name', '')}]"
            if (container.get("securityContext") or {}).get("privileged"):
                yield f"{where}.securityContext.privileged"
            for probe in _PROBES:
                action = container.get(probe) or {}
                if any((action.get(way) or {}).get("host") for way in ("httpGet", "tcpSocket")):
                    yield f"{where}.{probe}: host"
