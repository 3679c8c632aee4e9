"""The driver's environment as one table: what `--help` and docs/driver.md show, and the only names that are read.

`CUA_*` names are those that drivers under other coordinators speak too; `DURABLE_*` names are additions, all optional.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    meaning: str
    default: str = ""  # as a person reads it; "" with `required` False: absent
    required: bool = False
    secret: bool = False  # taken out of the environment before anything is started


VARIABLES: tuple[Variable, ...] = (
    Variable("CUA_SESSION", "name of the session", required=True),
    Variable(
        "CUA_SESSION_EPOCH", "epoch of this drive, from 1; issued by the coordinator, never made up", required=True
    ),
    Variable("CUA_SESSION_ATTEMPT", "counted attempts so far, from 1", "1"),
    Variable("CUA_SESSION_RESUME", "1 when an earlier drive of this session existed", "0"),
    Variable("CUA_SESSION_STATE_DIR", "folder of the log", required=True),
    Variable("CUA_SESSION_HEARTBEAT_SECS", "heartbeat period in seconds", "a quarter of DURABLE_STALL_SECS"),
    Variable("CUA_SESSION_SPACE", "name of the Space to work in", required=True),
    Variable("CUA_SESSION_SPACE_ADDR", "address of its daemon: host:port or unix:/path", required=True),
    Variable("CUA_SESSION_SPACE_TOKEN", "its access token", secret=True),
    Variable("CUA_SESSION_SPACE_LEASE", "lease token under which the Space is used", "0"),
    Variable("DURABLE_SESSION_UID", "identity of the session, and the request id of its input", "CUA_SESSION"),
    Variable(
        "DURABLE_RETRY_TOKEN", "token of a new series of attempts: an input that ended unanswered is gone on with once"
    ),
    Variable("DURABLE_SESSION_NAMESPACE", "namespace of the session", "default"),
    Variable("DURABLE_SPACE_TOKEN_FILE", "file with the access token, instead of CUA_SESSION_SPACE_TOKEN"),
    Variable("DURABLE_SPACE_CA_FILE", "CA that signed the daemon's certificate; with it the connection is TLS"),
    Variable("DURABLE_SPACE_GENERATION", "generation of the Space", "1"),
    Variable("DURABLE_SPACE_KIND", "container, gvisor or microvm", "container"),
    Variable("DURABLE_LOG", "sqlite: (log.db in the state folder) or sqlite:/path/of/log.db", "sqlite:"),
    Variable("DURABLE_CHECKPOINT_STORE", "where checkpoints live; part of checkpoint mode, not available yet"),
    Variable("DURABLE_INPUT", "file with the session's input"),
    Variable("DURABLE_AGENT", "file with the agent (YAML)"),
    Variable("DURABLE_SCRIPT", "file with the script of the model `scripted`"),
    Variable("DURABLE_MODE", "auto, transactional or checkpoint", "auto"),
    Variable("DURABLE_TRANSACTIONAL", "limits of transactional mode: JSON of maxFiles, maxBytes, exclude", "{}"),
    Variable("DURABLE_STALL_SECS", "seconds without a heartbeat after which a driver counts as frozen", "120"),
    Variable("DURABLE_GRACE_SECS", "seconds that a driver asked to stop takes at most to reach a durable point", "20"),
    Variable("DURABLE_COORDINATOR", "host:port of the coordinator's report stream"),
    Variable(
        "DURABLE_COORDINATOR_TOKEN_FILE", "file with the token for the report stream; read again at each connection"
    ),
    Variable("DURABLE_COORDINATOR_CA_FILE", "CA of the coordinator; needed unless its address is this machine's own"),
    Variable("DURABLE_COORDINATOR_NAME", "name in the coordinator's certificate", "the host of DURABLE_COORDINATOR"),
    Variable("DURABLE_HTTP", "address that serves /livez and /metrics; port 0 takes a free one", "127.0.0.1:0"),
    Variable("DURABLE_REPORT", "file that gets the report at the end", "/dev/termination-log where it exists"),
)

SECRETS: tuple[str, ...] = tuple(variable.name for variable in VARIABLES if variable.secret)
