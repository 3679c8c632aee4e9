"""What a harness and an agent are set up with. Values, not code: an Agent is stored by its names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Of model errors that may pass. The wait before retry n is base * 2**(n-1) seconds, at most `cap_seconds`."""

    max_retries: int = 3
    base_seconds: float = 2.0
    cap_seconds: float = 60.0
    # After the last one: the input ends unanswered (model_error), or this process ends with HaltError ModelUnavailable, and the
    # next one begins to try anew.
    exhausted: Literal["unanswered", "halt"] = "unanswered"

    def delay_seconds(self, retry: int) -> float:
        """Before retry `retry`, counted from 1."""
        return min(self.cap_seconds, self.base_seconds * 2.0 ** (retry - 1))


@dataclass(frozen=True, slots=True)
class Settings:
    partial_interval_ms: int = 100  # live output is committed at most so often: so much of it a crash may lose
    retry: RetryPolicy = RetryPolicy()
    restart_limit: int = 5  # a task that so many drives died in is parked, until retry_task
    output_bytes_max: int = 50 * 1024  # of a tool's output, as the model sees it
    output_lines_max: int = 2000
    # Which counted attempt this is (CUA_SESSION_ATTEMPT). A restart counts against a task only if it has grown since the
    # task last ran, so that evictions park nothing. None: nobody counts, and every opening is a new attempt.
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """Who answers in a conversation. Names only; the code behind them is what the harness was opened with."""

    model: str  # a key of `models`, or `key/name` for a provider with several models
    instructions: str = ""
    tools: Sequence[str] = ()
    thinking_level: str | None = None
    extensions: Sequence[str] = ()
    cwd: str | None = None
    max_turns: int | None = None  # model answers in one run; beyond it the inputs end unanswered: max_turns
    max_cost: float | None = None  # of the conversation, in the provider's currency: max_cost
