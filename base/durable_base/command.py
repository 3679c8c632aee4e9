"""What makes two commands the same command: one hash, computed alike by who asks for it and by who runs it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence


def command_hash(
    command: str, args: Sequence[str], env: Mapping[str, str], cwd: str, user: str, timeout_ns: int | None
) -> str:
    """sha256, 64 hex digits, over the fields of `cua.env.v1.ProcessConfig` as they stand in the request."""
    canonical = json.dumps(
        [command, list(args), sorted(env.items()), cwd, user, timeout_ns], ensure_ascii=True, separators=(",", ":")
    )
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
