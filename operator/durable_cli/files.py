"""Manifests from a path: a file, or all YAML files of a folder, as `kubectl apply -f` takes them."""

from __future__ import annotations

from pathlib import Path

from durable_base.errors import UsageError
from durable_coordinator.manifest import Manifests, load_manifests

_ENDINGS = (".yaml", ".yml", ".json")


def read_manifests(path: Path) -> Manifests:
    """Raise UsageError if there is nothing to read, or for what is wrong in it."""
    if not path.exists():
        raise UsageError(
            f"{path}: there is no such file or folder. Give the path of a manifest, or of a folder of manifests."
        )
    files = sorted(file for file in path.iterdir() if file.suffix in _ENDINGS) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path}: no {', '.join(_ENDINGS)} file in this folder. Give a folder that holds manifests.")
    texts = []
    for file in files:
        try:
            texts.append((str(file), file.read_text(encoding="utf-8")))
        except OSError as error:
            raise UsageError(f"{file}: can't be read ({error.strerror}). Check its owner and mode.") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{file}: is not UTF-8 text. Save it as UTF-8.") from error
    found = load_manifests(texts)
    if not found.sessions:
        raise UsageError(f"{path}: no DurableSession in it: add a document of kind DurableSession")
    return found
