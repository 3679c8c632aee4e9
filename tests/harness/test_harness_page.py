"""The page about the harness: its example runs as it stands, and it names every crash point that the code has."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "harness.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found.group(1)


def run_example(folder: Path) -> str:
    arguments = [sys.executable, "-B", "example.py"]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_example_runs_and_is_asked_once(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(block("python"))
    (tmp_path / "script.yaml").write_text(block("yaml"))
    assert run_example(tmp_path) == "It is 5.\n"
    (tmp_path / "script.yaml").write_text("steps:\n  - answer: something else\n")
    assert run_example(tmp_path) == "It is 5.\n", "from the log, not from the model"


def test_the_page_names_every_crash_point_and_a_test_kills_at_each() -> None:
    code = "".join(path.read_text() for path in (ROOT / "driver" / "durable_harness").rglob("*.py"))
    points = set(re.findall(r'crash_point\("([a-z_.]+)"\)', code))
    assert points
    assert {point for point in points if f"`{point}`" not in PAGE} == set()
    kills = (Path(__file__).parent / "test_killed_drives.py").read_text()
    assert {point for point in points if point not in kills} == set()
