"""A daemon that can't do what the adapter needs is refused for good, with the remedy, before anything else is asked of it."""

from __future__ import annotations

import pytest

from durable_base.errors import HaltError
from durable_protocol.cua.env.v1 import system_pb2 as system
from durable_spaces._capabilities import EXTENSION, NEEDS, check_daemon, serves_extension


def answer(*features: str, lacking: tuple[str, ...] = (), **fields: object) -> system.GetCapabilitiesResponse:
    told = [system.Feature(name=name, supported=True) for name in features]
    told += [system.Feature(name=name, supported=False, limitation="not in this build") for name in lacking]
    found = system.GetCapabilitiesResponse(version="0.7.0", protocol_version=1, features=told)
    found.MergeFrom(system.GetCapabilitiesResponse(**fields))  # type: ignore[arg-type]
    return found


def test_what_is_needed_is_enough() -> None:
    check_daemon(answer(*(need.feature for need in NEEDS), os=system.OperatingSystem(family=system.OS_FAMILY_LINUX)))


@pytest.mark.parametrize(
    ("found", "named"),
    [
        *((answer(*(other.feature for other in NEEDS if other is not need)), need.feature) for need in NEEDS),
        *((answer(lacking=(need.feature,)), need.feature) for need in NEEDS),
        (answer(*(need.feature for need in NEEDS), protocol_version=2), "version 2"),
        (
            answer(*(need.feature for need in NEEDS), os=system.OperatingSystem(family=system.OS_FAMILY_WINDOWS)),
            "Linux",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_lacks_is_named_with_the_remedy(found: system.GetCapabilitiesResponse, named: str) -> None:
    with pytest.raises(HaltError, match=r"run the Space with cua-spacesd .* or newer") as halted:
        check_daemon(found)
    assert (halted.value.reason, halted.value.permanent) == ("MissingCapability", True)
    assert named in halted.value.message


def test_our_daemon_is_known_by_its_extension() -> None:
    assert serves_extension(answer(EXTENSION))
    assert not serves_extension(answer(lacking=(EXTENSION,)))
    assert not serves_extension(answer("process.exec_ledger"))
