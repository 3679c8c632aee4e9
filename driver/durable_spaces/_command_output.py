"""What a command says, on its way from the Space to a tool: text for the receiver, and whether it has to be kept (spill)."""

from __future__ import annotations

import codecs
from collections.abc import Callable

from durable_base.errors import HaltError, StaleEpochError
from durable_harness.env import Spill, Stream


class CommandOutput:
    def __init__(self, on_output: Callable[[str, Stream], None] | None, spill: Spill | None) -> None:
        self._on_output = on_output
        self._spill = spill
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._bytes = 0
        self._lines = 0
        self.failure: Exception | None = None  # of the receiver

    @property
    def passed(self) -> bool:
        limits = self._spill
        return limits is not None and (self._bytes > limits.after_bytes or self._lines > limits.after_lines)

    def take(self, data: bytes, stream: Stream) -> None:
        self._bytes += len(data)
        self._lines += data.count(b"\n")
        self._hand_on(self._decoders[stream].decode(data), stream)

    def gap(self, size: int) -> None:
        self._bytes += size
        self._hand_on(f"[{size} bytes of output are no longer kept]\n", "stdout")

    def finish(self, trouble: str) -> None:
        self._hand_on(self._decoders["stdout"].decode(b"", True), "stdout")
        self._hand_on(self._decoders["stderr"].decode(b"", True), "stderr")
        if trouble:
            self._hand_on(f"[{trouble}]\n", "stderr")

    def _hand_on(self, text: str, stream: Stream) -> None:
        if not text or self._on_output is None or self.failure is not None:
            return
        try:
            self._on_output(text, stream)
        except (HaltError, StaleEpochError):
            raise
        except Exception as error:
            self.failure = error
