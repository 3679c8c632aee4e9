"""Ask a process to stop while it still starts: SIGTERM and SIGINT wait until somebody can take them.

The kernel drops what the first process of a container has no handler for, so without this a stop that comes during the imports
is never heard of again, and the container lives until it is killed.
"""

from __future__ import annotations

import signal

STOP = (signal.SIGTERM, signal.SIGINT)


def hold_stop() -> None:
    """From now on; before threads or children are made, which would hold them for good."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)


def take_stop() -> None:
    """The handlers are there: one that waited comes now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
