"""Generate `docs/reference-manifest.md`, every field of the manifests, from the CRDs: they are the single source.

python docs/generate.py          write
python docs/generate.py --check  exit 1 if the committed page is not what the CRDs give
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
PAGE = HERE / "reference-manifest.md"
KINDS = ("durablesession", "durablespace", "checkpointstore")
HEAD = """# Fields of the manifests

From the CRDs in `crds/`; on one machine `durable run` takes the same fields. `*`: required. Changes of a field that says
"immutable" are refused; of the others it is said when they take effect. `kubectl explain dsess.spec` tells the same.
"""


def fields(schema: dict[str, Any], path: str = "spec") -> Iterator[tuple[str, str, str, str]]:
    """(path, type, default, description) of every field below, depth first; free-form objects are not entered."""
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        below = field.get("items", field)
        here = f"{path}.{name}" + ("[]" if "items" in field else "")
        kind = " ".join(map(str, below["enum"])) if "enum" in below else below.get("type", "any")
        default = field.get("default", "")
        shown = "" if default in ("", {}) else f"`{json.dumps(default)}`"
        yield here + ("*" if name in required else ""), kind, shown, " ".join(field.get("description", "").split())
        yield from fields(below, here)


def page() -> str:
    parts = [HEAD]
    for name in KINDS:
        crd = yaml.safe_load((HERE.parent / "crds" / f"{name}.yaml").read_text())
        spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        names = ", ".join(crd["spec"]["names"].get("shortNames", ()))
        parts.append(
            f"\n## {crd['spec']['names']['kind']} (`{names}`)\n\n| field | type | default | |\n|---|---|---|---|\n"
        )
        for path, kind, default, text in fields(spec):
            parts.append(f"| `{path}` | {kind} | {default} | {text.replace('|', '&#124;')} |\n")
    return "".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    fresh = page()
    if not parser.parse_args().check:
        PAGE.write_text(fresh)
    elif not PAGE.exists() or PAGE.read_text() != fresh:
        sys.stderr.write("docs/reference-manifest.md is not what the CRDs give: run `python docs/generate.py`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
