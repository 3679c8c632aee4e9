"""gRPC's core writes to stderr what peers send it, which a log without content must not hold: it is imported silenced.

Not in `server`: the core reads the variable when it is imported, before any line of the importing module.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_NAME = "GRPC_VERBOSITY"


@contextmanager
def grpc_silenced() -> Iterator[None]:
    """Around the first import of grpc. Commands never inherit the variable from here; one that was set by others stays."""
    given = _NAME in os.environ
    os.environ.setdefault(_NAME, "NONE")
    try:
        yield
    finally:
        if not given:
            del os.environ[_NAME]
