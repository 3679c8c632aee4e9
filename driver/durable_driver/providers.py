"""Model providers by name. Keys come from the environment alone; each library is imported when its provider is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from durable_base.errors import UsageError
from durable_driver.agent import ModelSpec
from durable_harness.models import ModelProvider
from durable_harness.scripted import ScriptedModel

PROVIDERS = ("scripted", "openai-compatible", "openai", "anthropic", "google")


def make_provider(model: ModelSpec, environ: Mapping[str, str], script: Path | None) -> ModelProvider:
    """UsageError: an unknown provider, a missing name, key, address or script, or an extra that is not installed."""
    if model.provider == "scripted":
        if script is None:
            raise UsageError("DURABLE_SCRIPT is not set: the model `scripted` needs the path of its script")
        return ScriptedModel.load(script)
    makers: dict[str, Callable[[ModelSpec, Mapping[str, str]], ModelProvider]] = {
        "openai-compatible": _openai_compatible,
        "openai": _openai,
        "anthropic": _anthropic,
        "google": _google,
    }
    if model.provider not in makers:
        raise UsageError(f"model.provider: there is no provider {model.provider!r}; use one of {', '.join(PROVIDERS)}")
    if not model.name:
        raise UsageError(f"model.name: the provider {model.provider} needs the name of a model")
    return makers[model.provider](model, environ)


def _openai_compatible(model: ModelSpec, environ: Mapping[str, str]) -> ModelProvider:
    if not model.base_url:
        raise UsageError(
            "model.baseUrl: the provider openai-compatible needs the address of its API, like https://models.example/v1"
        )
    # Many servers of this kind, on one's own machine above all, want no key.
    key = environ.get("OPENAI_API_KEY") or "none"
    provider = _load(model, "providers.openai", "OpenAIProvider")(base_url=model.base_url, api_key=key)
    return _wrap(_load(model, "models.openai", "OpenAIChatModel")(model.name, provider=provider))


def _openai(model: ModelSpec, environ: Mapping[str, str]) -> ModelProvider:
    key = _key(model, environ, "OPENAI_API_KEY")
    provider = _load(model, "providers.openai", "OpenAIProvider")(base_url=model.base_url or None, api_key=key)
    library_model = _load(model, "models.openai", "OpenAIChatModel")(model.name, provider=provider)
    # The one API that keys its prompt cache by what the caller says.
    return _wrap(library_model, cache_key_setting="openai_prompt_cache_key")


def _anthropic(model: ModelSpec, environ: Mapping[str, str]) -> ModelProvider:
    key = _key(model, environ, "ANTHROPIC_API_KEY")
    address = {"base_url": model.base_url} if model.base_url else {}
    provider = _load(model, "providers.anthropic", "AnthropicProvider")(api_key=key, **address)
    return _wrap(_load(model, "models.anthropic", "AnthropicModel")(model.name, provider=provider))


def _google(model: ModelSpec, environ: Mapping[str, str]) -> ModelProvider:
    key = _key(model, environ, "GOOGLE_API_KEY", "GEMINI_API_KEY")
    address = {"base_url": model.base_url} if model.base_url else {}
    provider = _load(model, "providers.google", "GoogleProvider")(api_key=key, **address)
    return _wrap(_load(model, "models.google", "GoogleModel")(model.name, provider=provider))


def _key(model: ModelSpec, environ: Mapping[str, str], *names: str) -> str:
    for name in names:
        if value := environ.get(name):
            return value
    raise UsageError(
        f"{names[0]} is not set: the provider {model.provider} needs it; on one machine `export {names[0]}=...`, on a cluster "
        "give it to the driver by a secret (driver.env)"
    )


def _load(model: ModelSpec, module: str, name: str) -> Callable[..., Any]:
    try:
        loaded: Callable[..., Any] = getattr(importlib.import_module(f"pydantic_ai.{module}"), name)
    except ImportError as error:
        extra = "openai" if model.provider.startswith("openai") else model.provider
        raise UsageError(
            f"model.provider: {model.provider} needs a library that is not installed ({error.name or extra}); "
            f"install it with: pip install 'durable-sessions[models]' 'pydantic-ai-slim[{extra}]'"
        ) from None
    return loaded


def _wrap(library_model: Any, *, cache_key_setting: str | None = None) -> ModelProvider:
    from durable_driver.pydantic_models import PydanticModel  # needs the extra `models`, as its caller has found by now

    return PydanticModel(library_model, cache_key_setting=cache_key_setting)
