"""Who calls, from the metadata that space.proto names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from durable_base.floor import EPOCH_MAX, Floor
from durable_space.epochs import SEALED
from durable_space.gate import Caller
from durable_space.refusal import Code, Reason, Refused, invalid

EPOCH, INCARNATION, INSTANCE, BOOT = "durable-epoch", "durable-incarnation", "durable-instance", "durable-boot"


def text_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    return {key: value for key, value in metadata or () if isinstance(value, str)}


def read_caller(metadata: Mapping[str, str], epoch_in_message: int | None = None) -> Caller:
    """Raise Refused for what is not well-formed, and where message and metadata disagree."""
    incarnation = read_incarnation(metadata.get(INCARNATION, ""))
    text = metadata.get(EPOCH)
    if text is None:
        return Caller(Floor(check_epoch(epoch_in_message or 0), incarnation), named=bool(epoch_in_message))
    if not (text.isascii() and text.isdigit()):
        raise invalid(f"{EPOCH}: {text!r} is no decimal number")
    epoch = check_epoch(int(text[:20]))
    if epoch_in_message is not None and epoch_in_message != epoch:
        raise invalid(f"epoch {epoch_in_message} in the message, {epoch} in {EPOCH}: they must agree")
    return Caller(Floor(epoch, incarnation), named=True)


def check_epoch(epoch: int) -> int:
    if epoch > EPOCH_MAX:
        raise invalid(f"epoch {epoch} is above {EPOCH_MAX}")
    return epoch


def read_incarnation(text: str) -> str:
    if text and (len(text) != 32 or set(text) - set("0123456789abcdef") or text == SEALED):
        raise invalid(f"{INCARNATION}: must be 32 hex digits in lower case, drawn at random")
    return text


def check_space(metadata: Mapping[str, str], instance_id: str, boot_id: str) -> None:
    """Rule 12: a request names the Space that it is meant for; another one does nothing."""
    wrong_instance = metadata.get(INSTANCE, instance_id) != instance_id
    if wrong_instance or metadata.get(BOOT, boot_id) != boot_id:
        what = "another instance" if wrong_instance else "another boot of the machine"
        raise Refused(
            Code.FAILED_PRECONDITION,
            Reason.STALE_HANDLE,
            f"this is {what} than the request is meant for: nothing was done",
            condition="SpaceChanged",
            metadata={"instance_id": instance_id, "boot_id": boot_id},
        )
