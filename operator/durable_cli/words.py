"""The words of a story: kinds, codes and durations of events as a person reads them. Pure."""

from __future__ import annotations

from durable_local.events import Event

# What became of the call that a crash interrupted; a Space can be made again where none was.
_RECOVERIES = {
    "reattached": "step {step} reattached to its command",
    "replayed": "step {step} had ended meanwhile; its result is kept",
    "adopted": "step {step} had taken effect; its outcome is kept",
    "run": "step {step} had not begun; it runs now",
    "reverted": "step {step} undone and done again",
    "restored": "step {step} undone by restoring the checkpoint before it",
    "reimaged": "Space made again from the log",
    "rebuilt": "Space made again from the newest checkpoint",
    "handedOver": "another session used the Space; step {step} is interrupted",
}
# What came of asking the model, by the driver's kinds; one that is not here is told as it is.
_MODEL_ERRORS = {
    "NameUnresolved": "its name can't be resolved (DNS)",
    "ConnectionRefused": "the connection was refused",
    "TlsFailed": "the TLS connection failed",
    "Timeout": "no answer in time",
    "ConnectionBroken": "the connection broke",
    "ConnectionFailed": "the connection failed",
    "NoAnswer": "the stream ended without an answer",
    "ContentFilter": "the content filter ended the answer",
    "ModelError": "the request failed",
    "NotThisApi": "no API of this provider's kind answers there",
}
_WORDS_MAX = 300
_SUMMARY_MAX = 48


def summary(arguments: object) -> str:
    """The argument that tells a call from others, on one line: its path, or the first line of its command."""
    if not isinstance(arguments, dict):
        return ""
    text = next((str(arguments[name]) for name in ("path", "command") if arguments.get(name)), "")
    first, *more = text.strip().splitlines() or [""]
    return first[: _SUMMARY_MAX - 4] + " ..." if more or len(first) > _SUMMARY_MAX else first


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"


def ended(event: Event) -> str:
    number, code = event.fields.get("signal"), event.fields.get("code")
    if number:
        return f"killed by signal {number}"
    return "nobody saw how" if code is None else f"exit code {code}"


def count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def cut(text: str) -> str:
    """Long enough for a sentence; what is cut says that it goes on, for its end may turn what it means."""
    return text if len(text) <= _WORDS_MAX else text[: _WORDS_MAX - 4].rstrip() + " ..."


def model_error(event: Event) -> str:
    kind, host = str(event.fields.get("kind")), event.fields.get("host")
    words = f"HTTP {kind[4:]}" if kind.startswith("Http") else _MODEL_ERRORS.get(kind, kind)
    return f"{host}: {words}" if host else words


def failed(event: Event) -> str:
    code, error = event.fields.get("exitCode"), str(event.fields.get("error") or "")
    if code:
        return f"failed (exit code {code})"
    return "failed" if error in ("", "tool_error") else f"failed ({error.replace('_', ' ')})"


def recovered(kind: str, step: int | None) -> str:
    text = _RECOVERIES.get(kind, f"step {{step}} recovered: {kind}")
    if "step {step}" not in text:
        return f"{text}, for step {step}" if step else text
    return text.replace("step {step}", f"step {step}" if step else "the step in work")
