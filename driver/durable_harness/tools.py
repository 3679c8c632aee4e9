"""Tools and extensions: what a tool is, what it may do, and how an extension wraps one.

Replay: the harness commits a call's intent (final arguments, replay policy) before it runs the tool. After a crash in it an
`unsafe` tool is not run again, its result is `interrupted`; a `safe` one is run again with the stored arguments. A wrapped
tool counts as `safe`: its wrapper is called again with `call.recovered` set, and decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from durable_harness.env import ExecutionEnv
    from durable_harness.session import Tx

Json = Any
Replay = Literal["safe", "unsafe"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A remark that the model sees, in one block behind the output."""

    severity: Literal["info", "warning", "error"]
    code: str  # tool_unavailable invalid_arguments blocked interrupted aborted tool_error truncated exit_code ...
    message: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    output: str
    is_error: bool = False
    details: Json = None  # for user interfaces
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of the model, as the intent commit holds it."""

    conversation_id: int
    task_id: int  # the key of the call: unique in the log, stable over crashes
    call_id: str  # the provider's; not unique
    name: str
    arguments: Json
    recovered: bool  # an earlier drive committed the intent: the tool may have run, wholly or in part


class ToolApi(Protocol):
    """What a running tool (or its wrapper) may use. Valid until its call settles."""

    @property
    def call(self) -> ToolCall: ...

    @property
    def env(self) -> ExecutionEnv: ...

    def output(self, text: str) -> None:
        """Live output: shown, committed at most every 100 ms; becomes the result's output if the tool returns none."""
        ...

    async def commit(self, fn: Callable[[Tx], Awaitable[Any] | Any]) -> Any:
        """One commit of documents, gated by the task: refused once it is aborted or ended."""
        ...

    def at_result(self, fn: Callable[[Tx, int], None]) -> None:
        """`fn(tx, entry_id)` runs inside the commit of this call's result entry, however that comes about in this drive."""
        ...

    def after_result(self, fn: Callable[[], None]) -> None:
        """Called once when this call will do nothing more in this process: after its result commit, or at close."""
        ...


ToolBody = Callable[[ToolApi, Json], Awaitable[ToolResult | str | Any]]


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    parameters: Json  # JSON Schema of an object
    run: ToolBody  # (api, arguments)
    replay: Replay = "unsafe"
    # For wrappers that must judge a crash: what the body does to the environment.
    effects: Literal["none", "files", "command", "mixed"] = "mixed"
    # The command that a body with effects "command" runs, from its arguments; pure. None for other tools.
    command_of: Callable[[Json], str] | None = None
    truncate: Literal["head", "tail"] = "head"  # which end of an over-long output is kept


class ToolWrapper(Protocol):
    """Stands around a tool's body. Its answer is the call's result; what it raises is judged as the body's would be."""

    async def __call__(
        self, api: ToolApi, tool: Tool, run: Callable[[ExecutionEnv], Awaitable[ToolResult]]
    ) -> ToolResult:
        """`run(env)` runs the body once, with that environment, and returns its normalised result."""
        ...


@dataclass(frozen=True, slots=True)
class Extension:
    """A named bundle. Conversations store names, never code."""

    name: str
    tools: tuple[Tool, ...] = ()
    wrappers: dict[str, ToolWrapper] = field(default_factory=dict)  # by tool name; at most one for each
    # Names of tools whose calls take turns: such a call begins when every earlier call of its round has ended. Calls of other
    # tools begin at once, beside each other.
    in_order: tuple[str, ...] = ()
