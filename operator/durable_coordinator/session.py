"""Plan one session: facts in, actions and the new status out. Pure; the shell reads, acts, and asks again."""

from __future__ import annotations

from durable_coordinator.actions import SessionPlan
from durable_coordinator.facts import SessionFacts


def plan_session(facts: SessionFacts) -> SessionPlan:
    """What to do about a session now. Total over valid facts; never raises but OverflowError (see `next_epoch`).

    The shell carries out `actions` in order and stops at the first that fails; `WriteStatus` among them writes `status`. It
    plans again when anything about session, driver or Space changed, at the latest after `requeue_after` seconds.
    """
    raise NotImplementedError
