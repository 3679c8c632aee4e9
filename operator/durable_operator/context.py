"""What the reconcilers share: one leader's connections, memory and secrets, and how it wakes its own keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from durable_operator.events import Recorder
from durable_operator.kube import Kube
from durable_operator.memory import Key, Memory
from durable_operator.metrics import Metrics
from durable_operator.read import Reader
from durable_operator.secrets import Install
from durable_operator.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Context:
    """`wake_session`, `wake_space`: look at that object now, or after so many seconds."""

    settings: Settings
    kube: Kube
    memory: Memory
    install: Install
    reader: Reader
    recorder: Recorder
    metrics: Metrics
    wake_session: Callable[[Key, float], Awaitable[None]]
    wake_space: Callable[[Key, float], Awaitable[None]]
    ask_stop: Callable[[Key, str, str], Awaitable[None]]  # session, uid of its driver's pod, reason
