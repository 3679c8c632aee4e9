"""Remove folders behind everybody's back: a large conversation has a hundred thousand, and nobody has to wait for them.

What is handed in must never be asked for again. A daemon that ends or is killed leaves the rest, which its successor finds by
the rows that are not there any more.
"""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Iterable


class Removals:
    """Thread-safe. One thread, made with the first folder; it ends with the process."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, folders: Iterable[str]) -> None:
        for folder in folders:
            self._queue.put(folder)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="removals", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            shutil.rmtree(self._queue.get(), ignore_errors=True)
