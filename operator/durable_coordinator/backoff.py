"""How long the next drive waits. Two rows: ends that count against maxAttempts, and ends that do not but must not be free."""

from __future__ import annotations

from durable_coordinator.spec_session import Retry

UNCOUNTED_SECONDS_MAX = 300.0
FENCED_IN_A_ROW = 5  # after that many, somebody else drives this log (rule 10)


def counted_seconds(retry: Retry, counted_attempts: int) -> float:
    """initial * factor^(n-1), at most `max_seconds`, after the n-th counted end in a row."""
    wait = retry.initial_seconds
    for _ in range(counted_attempts - 1):
        if wait >= retry.max_seconds or retry.factor == 1:
            break
        wait *= retry.factor
    return float(min(wait, retry.max_seconds))


def uncounted_seconds(in_a_row: int) -> float:
    """0, 1, 2, 4 ... 300 s after the n-th end in a row without progress (rule 10): an eviction storm is no hot loop."""
    if in_a_row <= 1:
        return 0.0
    return min(2.0 ** min(in_a_row - 2, 16), UNCOUNTED_SECONDS_MAX)
