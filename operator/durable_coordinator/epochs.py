"""Epochs: the number that fences every earlier driver, and the names that carry it.

Gaps are fine, going back is not: an epoch that some resource has seen already would let two drivers pass for one.
"""

from __future__ import annotations

from durable_base.floor import EPOCH_MAX


def next_epoch(*, session: int, lease_token: int, space: int, reported_floor: int, names_seen: int) -> int:
    """The epoch of the next drive: above all that is known (rule 16). `lease_token` is the token it will be issued under.

    Raises OverflowError above 2^53 - 1: only a damaged floor leads there, and to wrap would be to go back.
    """
    epoch = max(session + 1, lease_token, space + 1, reported_floor + 1, names_seen + 1)
    if epoch > EPOCH_MAX:
        raise OverflowError(
            f"epoch {epoch} is above {EPOCH_MAX}: a floor or a status is damaged; no drive can be started"
        )
    return epoch


def driver_name(session: str, epoch: int) -> str:
    return f"{session}-e{epoch}"


def space_pod_name(space: str, generation: int) -> str:
    return f"{space}-g{generation}"


def epoch_of(session: str, name: str) -> int:
    """The epoch in a driver's name, 0 if it is not a name of this session."""
    return _number(session, "-e", name)


def generation_of(space: str, name: str) -> int:
    """The generation in a Space pod's name, 0 if it is not a name of this Space."""
    return _number(space, "-g", name)


def _number(owner: str, mark: str, name: str) -> int:
    prefix = owner + mark
    digits = name[len(prefix) :]
    if not name.startswith(prefix) or not (digits.isascii() and digits.isdigit()):
        return 0
    return int(digits)
