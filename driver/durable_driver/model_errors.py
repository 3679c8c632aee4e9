"""What went wrong with a model, in words that hold no content: a kind and a host, for events, report and metrics.

The harness decides whether and when the model is asked again, and its log says so. Which error it was is known here alone, where
the provider raised it; `Watch` puts the two together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from durable_harness.models import Final, ModelError, ModelProvider, ModelRequest, Partial, Usage


class ApiError(ModelError):
    """A ModelError of a provider that knows what kind it is and which host it comes from."""

    def __init__(self, message: str, *, kind: str, host: str = "", retryable: bool, usage: Usage | None = None) -> None:
        super().__init__(message, retryable=retryable, usage=usage or Usage())
        self.kind = kind
        self.host = host


@dataclass(frozen=True, slots=True)
class Failure:
    kind: str  # CamelCase: ConnectionRefused, Http429 ..., else the class of the error
    host: str  # `name:port`, "" if the provider does not say


class Failures:
    """The newest failure of each model, from when its provider raised it until `take` is asked for it."""

    def __init__(self) -> None:
        self._newest: dict[str, Failure] = {}

    def watched(self, models: Mapping[str, ModelProvider]) -> dict[str, ModelProvider]:
        return {key: _Watched(key, provider, self._newest) for key, provider in models.items()}

    def take(self, model: str) -> Failure | None:
        """`model` as a task names it: the provider's key, or `key/name`."""
        return self._newest.pop(model, None)


class _Watched:
    """A provider that changes nothing for who asks."""

    def __init__(self, key: str, provider: ModelProvider, newest: dict[str, Failure]) -> None:
        self._key = key
        self._provider = provider
        self._newest = newest

    async def stream(self, request: ModelRequest) -> AsyncIterator[Partial | Final]:
        model = self._key if request.model == self._key else f"{self._key}/{request.model}"
        self._newest.pop(model, None)
        stream = self._provider.stream(request)
        try:
            async for part in stream:
                yield part
        except Exception as error:
            kind, host = (error.kind, error.host) if isinstance(error, ApiError) else (type(error).__name__, "")
            self._newest[model] = Failure(kind, host)
            raise
        finally:
            # Who reads ends after the last part, or in the middle: the provider's own clean-up must not wait for a collector.
            if (close := getattr(stream, "aclose", None)) is not None:
                await close()
