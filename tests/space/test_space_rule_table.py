"""The table of rules and tests in docs/development.md says what is so."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULES = (1, 4, 6, 7, 9, 10, 12, 13, 16, 21, 24, 26, 27, 28, 36, 37)  # of the Space
NAMED = re.compile(r"\bRules? (\d+(?:(?:, | and )\d+)*)")


def named_in_docstrings() -> dict[int, set[str]]:
    """Rule -> modules, as the table spells them, with a test whose docstring carries its number."""
    found: dict[int, set[str]] = defaultdict(set)
    for folder in ("space", "adapter"):
        for path in (ROOT / "tests" / folder).glob("test_*.py"):
            name = path.stem.removeprefix("test_space_") if folder == "space" else f"adapter/{path.stem[5:]}"
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                    for numbers in NAMED.findall(ast.get_docstring(node) or ""):
                        for number in map(int, re.findall(r"\d+", numbers)):
                            found[number].add(name)
    return found


def told_in_the_table() -> dict[int, set[str]]:
    text = (ROOT / "docs" / "development.md").read_text()
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE)
    return {int(number): set(re.findall(r"`([^`]+)`", places)) for number, places in rows}


def test_every_rule_of_the_space_has_tests_that_carry_its_number_and_the_table_names_their_files() -> None:
    named, told = named_in_docstrings(), told_in_the_table()
    assert tuple(sorted(told)) == RULES
    assert {rule: sorted(told[rule]) for rule in RULES} == {rule: sorted(named[rule]) for rule in RULES}
