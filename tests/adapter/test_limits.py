"""Modes and limits: what is refused, and that the refusal names the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from durable_base.errors import HaltError, UsageError
from durable_spaces import Limits, RemoteSpaces, durable_spaces, parse_limits
from durable_spaces.client import Address


def adapter(**options: Any) -> None:
    durable_spaces(spaces=RemoteSpaces(Address("unix:/nowhere")), epoch=1, incarnation="0" * 32, **options)


@pytest.mark.parametrize("mode", ["auto", "transactional"])
def test_served_modes(mode: str) -> None:
    adapter(mode=mode)


def test_checkpoint_mode_is_refused_for_good_and_names_the_modes_that_work() -> None:
    with pytest.raises(HaltError) as refused:
        adapter(mode="checkpoint")
    assert refused.value.permanent
    assert refused.value.reason == "ModeUnsupported"
    assert "checkpoint" in refused.value.message
    assert "mode: transactional" in refused.value.message
    assert "auto" in refused.value.message


def test_an_unknown_mode_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'fast' is none of auto, transactional, checkpoint"):
        adapter(mode="fast")


def test_limits_are_read_as_the_manifest_spells_them() -> None:
    got = parse_limits({"maxFiles": 5, "maxBytes": 7, "exclude": ["node_modules/", "./a/b"]})
    assert got == Limits(5, 7, (b"node_modules", b"a/b"))
    assert parse_limits(None) == Limits()


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ({"maxfiles": 5}, "transactional.maxfiles"),
        ({"maxFiles": 0}, "transactional.maxFiles"),
        ({"maxBytes": True}, "transactional.maxBytes"),
        ({"maxBytes": "16Mi"}, "transactional.maxBytes"),
        ({"exclude": "node_modules"}, "transactional.exclude"),
        ({"exclude": ["/etc"]}, "'/etc'"),
        ({"exclude": ["a/../../b"]}, "'a/../../b'"),
        ({"exclude": ["."]}, "'.'"),
    ],
)
def test_a_bad_limit_names_its_key(value: dict[str, Any], names: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_limits(value)
    assert names in str(refused.value)
