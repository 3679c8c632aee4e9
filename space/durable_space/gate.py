"""The floor as every request meets it: who may change something, and until when.

Guarantee (rule 26): a change made inside `change(caller)` happened before the floor rose, or does not happen. A writer
(`raising`) waits for the changes that are under way, each one local and bounded (one file, one reservation), and every
older one that comes later is refused by the check inside. What a client sends is gathered before, so AdvanceEpoch never
waits for a slow client, and no temporary file of an older driver appears after it has answered.

Not chosen: holding the gate for a whole Scan or upload. A client that stops reading would hold back the newer driver.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from durable_base.floor import Admission, Floor, judge
from durable_space.refusal import not_advanced, stale


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, from the request's metadata. `named` is False where no epoch was given: reading is then not fenced."""

    floor: Floor
    named: bool


class Fence(Protocol):
    """What files and workspace ask. The daemon's is the `Gate`; the Space helper's is its own life (`helper.life`)."""

    def check(self, caller: Caller) -> None:
        """Raise Refused unless this caller may change something now."""
        ...

    def check_reading(self, caller: Caller) -> None: ...

    def change(self, caller: Caller) -> AbstractContextManager[None]:
        """Around a whole change."""
        ...


class Gate:
    """Used from threads. `floor` is the ledger's; only `epochs` changes it, inside `raising`."""

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self._state = threading.Condition()
        self._changing = 0
        self._raising = False

    def check(self, caller: Caller) -> None:
        """Raise Refused unless the caller's pair is the floor (rules 1 and 4)."""
        admission = judge(self.floor, caller.floor)
        if admission is Admission.STALE:
            raise stale(caller.floor, self.floor)
        if admission is Admission.RAISES:
            raise not_advanced(caller.floor, self.floor)

    def check_reading(self, caller: Caller) -> None:
        """A reader that names an epoch learns at once that it is stale; one that names none only reads."""
        if caller.named:
            self.check(caller)

    @contextmanager
    def change(self, caller: Caller) -> Iterator[None]:
        """Around a whole change: temporary file, rename, what comes before and after. Never wait for a client inside."""
        with self._state:
            self._state.wait_for(lambda: not self._raising)
            self.check(caller)
            self._changing += 1
        try:
            yield
        finally:
            self.leave()

    def try_enter(self, caller: Caller) -> bool:
        """`change` for the event loop, which must not wait here. False: a raise is under way. `leave` ends it."""
        with self._state:
            if self._raising:
                return False
            self.check(caller)
            self._changing += 1
            return True

    def enter_again(self) -> None:
        """Of one who is inside: for work that may outlast it. `leave` ends this one too."""
        with self._state:
            self._changing += 1

    def leave(self) -> None:
        with self._state:
            self._changing -= 1
            self._state.notify_all()

    def await_raise(self) -> None:
        """Until none is under way."""
        with self._state:
            self._state.wait_for(lambda: not self._raising)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """No change is under way inside, and none begins. Callers are one at a time (`epochs` has the lock)."""
        with self._state:
            self._raising = True
            self._state.wait_for(lambda: self._changing == 0)
        try:
            yield
        finally:
            with self._state:
                self._raising = False
                self._state.notify_all()
