"""The environment: every bad value is refused in one line that names variable, value and remedy."""

from pathlib import Path

import pytest

from durable_base.errors import UsageError
from durable_driver.environment import parse_environment
from durable_driver.variables import SECRETS, VARIABLES

GOOD = {
    "CUA_SESSION": "fix-bug",
    "CUA_SESSION_EPOCH": "3",
    "CUA_SESSION_STATE_DIR": "/state",
    "CUA_SESSION_SPACE": "box",
    "CUA_SESSION_SPACE_ADDR": "unix:/run/box.sock",
}


def test_the_least_environment_has_defaults_for_the_rest() -> None:
    drive = parse_environment(GOOD)
    assert (drive.uid, drive.namespace, drive.attempt, drive.resume) == ("fix-bug", "default", 1, False)
    assert (drive.stall_seconds, drive.heartbeat_seconds, drive.mode) == (120.0, 30.0, "auto")
    assert drive.log_path == Path("/state/log.db")
    assert (drive.space.token, drive.space.server_name, drive.space.generation) == (None, None, 1)
    assert (drive.coordinator, drive.report_path, drive.http) == (None, None, ("127.0.0.1", 0))


def test_a_full_environment_is_read() -> None:
    drive = parse_environment(
        {
            **GOOD,
            "CUA_SESSION_ATTEMPT": "2",
            "CUA_SESSION_RESUME": "1",
            "CUA_SESSION_HEARTBEAT_SECS": "0.5",
            "CUA_SESSION_SPACE_ADDR": "[::1]:7411",
            "CUA_SESSION_SPACE_TOKEN": "secret",
            "CUA_SESSION_SPACE_LEASE": "7",
            "DURABLE_SESSION_UID": "u-1",
            "DURABLE_SESSION_NAMESPACE": "team",
            "DURABLE_SPACE_CA_FILE": "/ca.pem",
            "DURABLE_SPACE_GENERATION": "4",
            "DURABLE_SPACE_KIND": "gvisor",
            "DURABLE_LOG": "sqlite:/logs/a.db",
            "DURABLE_TRANSACTIONAL": '{"maxFiles": 5, "exclude": [".cache"]}',
            "DURABLE_COORDINATOR": "durable.example:7414",
            "DURABLE_COORDINATOR_CA_FILE": "/ca2.pem",
            "DURABLE_HTTP": "0.0.0.0:7413",
        }
    )
    assert (drive.uid, drive.attempt, drive.resume, drive.heartbeat_seconds) == ("u-1", 2, True, 0.5)
    assert (drive.space.server_name, drive.space.lease_token, drive.space.token) == ("box-g4.team", 7, "secret")
    assert drive.log_path == Path("/logs/a.db")
    assert drive.transactional == {"maxFiles": 5, "exclude": [".cache"]}
    assert drive.coordinator is not None
    assert (drive.coordinator.host, drive.coordinator.port, drive.coordinator.name) == (
        "durable.example",
        7414,
        "durable.example",
    )


def test_a_token_file_stands_above_the_token() -> None:
    drive = parse_environment({**GOOD, "CUA_SESSION_SPACE_TOKEN": "secret", "DURABLE_SPACE_TOKEN_FILE": "/token"})
    assert (drive.space.token, drive.space.token_file) == (None, Path("/token"))


@pytest.mark.parametrize("name", [variable.name for variable in VARIABLES if variable.required])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_required_variable_is_named(name: str, value: str | None) -> None:
    environ = {key: text for key, text in {**GOOD, name: value}.items() if text is not None}
    with pytest.raises(UsageError) as caught:
        parse_environment(environ)
    assert str(caught.value).startswith(f"{name} is not set: ")


BAD = [
    ("CUA_SESSION_EPOCH", "0"),
    ("CUA_SESSION_EPOCH", "-1"),
    ("CUA_SESSION_EPOCH", "1.5"),
    ("CUA_SESSION_EPOCH", "٣"),
    ("CUA_SESSION_EPOCH", str(2**53)),
    ("CUA_SESSION_ATTEMPT", "0"),
    ("CUA_SESSION_RESUME", "yes"),
    ("CUA_SESSION_HEARTBEAT_SECS", "soon"),
    ("CUA_SESSION_HEARTBEAT_SECS", "0"),
    ("CUA_SESSION_HEARTBEAT_SECS", "nan"),
    ("CUA_SESSION_HEARTBEAT_SECS", "120"),
    ("CUA_SESSION_SPACE_ADDR", "box"),
    ("CUA_SESSION_SPACE_ADDR", "box:0"),
    ("CUA_SESSION_SPACE_ADDR", "box:99999"),
    ("CUA_SESSION_SPACE_LEASE", "x"),
    ("DURABLE_SPACE_GENERATION", "0"),
    ("DURABLE_SPACE_KIND", "vm"),
    ("DURABLE_LOG", "jsonl:"),
    ("DURABLE_LOG", "s3://bucket/prefix"),
    ("DURABLE_LOG", "sqlite:relative.db"),
    ("DURABLE_LOG", "postgres:"),
    ("DURABLE_CHECKPOINT_STORE", "file:///store"),
    ("DURABLE_MODE", "fast"),
    ("DURABLE_TRANSACTIONAL", "{"),
    ("DURABLE_TRANSACTIONAL", "[]"),
    ("DURABLE_TRANSACTIONAL", '{"maxFiles": 0}'),
    ("DURABLE_TRANSACTIONAL", '{"maxBytes": true}'),
    ("DURABLE_TRANSACTIONAL", '{"exclude": ["/abs"]}'),
    ("DURABLE_TRANSACTIONAL", '{"exclude": ["a/../.."]}'),
    ("DURABLE_TRANSACTIONAL", '{"max": 1}'),
    ("DURABLE_STALL_SECS", "-3"),
    ("DURABLE_GRACE_SECS", "x"),
    ("DURABLE_COORDINATOR", "localhost"),
    ("DURABLE_HTTP", "7413"),
    ("DURABLE_INPUT", "a\0b"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_refused_in_one_line_with_variable_value_and_remedy(name: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_environment({**GOOD, name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} is {value[:60]!r}: ")
    assert "\n" not in message
    assert len(message.split(": ", 1)[1]) > 10


def test_a_token_never_crosses_a_network_in_plain_text() -> None:
    with pytest.raises(UsageError, match="DURABLE_COORDINATOR_CA_FILE is not set"):
        parse_environment({**GOOD, "DURABLE_COORDINATOR": "durable.example:7414"})
    assert parse_environment({**GOOD, "DURABLE_COORDINATOR": "127.0.0.1:7414"}).coordinator is not None


def test_a_secret_is_neither_shown_nor_left_out_of_the_list_to_remove() -> None:
    assert SECRETS == ("CUA_SESSION_SPACE_TOKEN",)
    with pytest.raises(UsageError) as caught:
        parse_environment({**GOOD, "CUA_SESSION_SPACE_TOKEN": "se\0cret"})
    assert "cret" not in str(caught.value)


def test_the_table_of_variables_is_all_that_is_read() -> None:
    class Watching(dict[str, str]):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            self.asked: set[str] = set()

        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            self.asked.add(key)
            return super().get(key, default)

    environ = Watching({**GOOD, "DURABLE_COORDINATOR": "127.0.0.1:1"})
    parse_environment(environ)
    assert environ.asked == {variable.name for variable in VARIABLES}


def test_the_page_and_the_table_agree() -> None:
    page = (Path(__file__).parents[2] / "docs" / "driver.md").read_text()
    for variable in VARIABLES:
        assert f"`{variable.name}`" in page, f"docs/driver.md does not know {variable.name}"
