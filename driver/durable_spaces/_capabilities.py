"""What a daemon of `cua.env.v1` must be able to do, as it tells itself. One table for the adapter and its tests."""

from __future__ import annotations

from dataclasses import dataclass

from durable_base.errors import HaltError
from durable_protocol.cua.env.v1 import system_pb2 as system

EXTENSION = "durable.space.v1"
PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class Need:
    feature: str
    why: str


NEEDS = (Need("process.exec_ledger", "without it a command whose driver died could run twice"),)
REMEDY = "run the Space with cua-spacesd 0.8.0 or newer, or with this product's Space daemon"


def serves_extension(found: system.GetCapabilitiesResponse) -> bool:
    return any(feature.name == EXTENSION and feature.supported for feature in found.features)


def check_daemon(found: system.GetCapabilitiesResponse) -> None:
    """Raise HaltError MissingCapability, permanent: no later drive can work there either."""
    if found.protocol_version != PROTOCOL_VERSION:
        raise _missing(f"the Space speaks version {found.protocol_version} of cua.env, not {PROTOCOL_VERSION}")
    if found.os.family not in (system.OS_FAMILY_LINUX, system.OS_FAMILY_UNSPECIFIED):
        raise _missing("the Space's system is not Linux")
    served = {feature.name for feature in found.features if feature.supported}
    for need in NEEDS:
        if need.feature not in served:
            raise _missing(f"the Space's daemon ({found.version}) lacks {need.feature}: {need.why}")


def _missing(what: str) -> HaltError:
    return HaltError("MissingCapability", f"{what}; {REMEDY}", permanent=True)
