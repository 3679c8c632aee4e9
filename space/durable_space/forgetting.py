"""Drop the rows of a finished conversation; what their commands left in the data folder goes a little later (`removals`).

All or nothing as far as refusals go: everything is looked at before the first row goes. Rows go in parts, each in one synced
step, so that neither a start nor an AdvanceEpoch waits long for a large conversation. Killed in between, or overtaken by a
newer driver, some rows are gone and the same call drops the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_space.gate import Caller
from durable_space.refusal import Code, Reason, Refused
from durable_space.rows import Row

if TYPE_CHECKING:
    from durable_space.runtime import Runtime

ROWS_AT_ONCE = 500


def forget(runtime: Runtime, caller: Caller, prefix: str) -> int:
    """Rows dropped: those whose key begins with `prefix`. Blocking. Raise Refused: stale, or one of them is not over."""
    runtime.gate.check(caller)
    rows = runtime.ledger.by_prefix(prefix)
    for row in rows:
        _check_over(runtime, row)
    dropped = 0
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = [row.seq for row in rows[start : start + ROWS_AT_ONCE]]
        with runtime.gate.change(caller):
            dropped += runtime.commands.drop(part)
    return dropped


def _check_over(runtime: Runtime, row: Row) -> None:
    """A lost command counts only once its end is proven: its row is what the next proof looks by (rule 27)."""
    seen = runtime.commands.observe(row)
    if seen.settled and not seen.shim_alive and not runtime.ender.needs_proof(seen):
        return
    raise Refused(
        Code.FAILED_PRECONDITION,
        Reason.UNSPECIFIED,
        "a command of this prefix, or what it left behind, still runs or may do so: end it first, as KillAll does",
        condition="StillRunning",
        metadata={"request_id": row.request_id},
    )
