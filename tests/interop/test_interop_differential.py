"""One script of calls against the real cua-spacesd and ours: they differ where docs/space-differences.md says so, only there.

A difference that no row names fails, and so does a row that no difference needs any more.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from cua_observe import differences
from cua_script import Script

DOCUMENT = Path(__file__).parents[2] / "docs" / "space-differences.md"


@dataclass(frozen=True)
class Row:
    """`calls` and `fields` match whole names of calls and paths into what was observed."""

    name: str  # its line in the document
    calls: str
    fields: str = ".*"
    ours_alone: bool = False  # what ours tells in addition


INTENDED = (
    Row("Its own names and limits", "capabilities", r"version|runtime_detail|limits\..*"),
    Row("Nothing to initialise", "capabilities", "initialized"),
    Row(
        "Features",
        "features",
        r"pty|fs_watch|fs\.run_as|fs\.xattr|hotspot|relay_attach|tunnel\.forward|(volume|teleport)\..*|durable\.space\.v1",
    ),
    Row("Details with every refusal", ".*", r"error\.metadata\..*", ours_alone=True),
    Row("Details with every refusal", "token and no message", r"error\.details"),
    Row("Terminals", "with a terminal of no size|terminal input without a terminal|size of no terminal"),
    Row("What no process can be made of", "name with '='|empty name|NUL in .*|negative timeout"),
    Row("Another command under a known id", "another .* under its id"),
    Row("Records of running commands", "record of a running command", r"ok\.record\.(output_bytes|tail)"),
    Row("A request id is a tag", "after its end, by request id"),
    Row("Output that is gone", "little scrollback|offset that is gone"),
    Row("Output that is kept", "what is left", r"first_offset|stdout|start\.scrollback_start_offset"),
    Row("Relative paths", "stat relative|write relative|relative"),
    Row(
        "Another user, extended attributes",
        "(stat|make|read|write|move|remove|upload) as another user|stat extended .*",
    ),
    Row("Errors name what was asked for", "write|upload below what is not there", r"error\.metadata\.path"),
    Row("Errors name what was asked for", "remove a full folder", r"error\.reason"),
    Row("Writing through links", "the link|behind the link|the dangling link"),
    Row("Moves are renames", "move a file over a folder|move a folder over a (full one|file)|moved? over itself"),
    Row("An upload's time", "chunk after its time|left over"),
    Row("Killed by an epoch", "killed by .*|record of what .*|repeat of what it killed", r"(ok\.record\.)?end\.error"),
    Row("A caller without an epoch", "advance to 1|advance far", r"ok\.killed"),
    Row(
        "A caller without an epoch",
        "started without an epoch|(start|input|signal|folder|write) without (an )?epoch.*|after a signal without an epoch",
    ),
    Row("The last epoch", "advance (too far|further)|start after it all"),
)


@pytest.fixture(scope="module")
def found(theirs, ours):
    """(call, field, theirs, ours) of every difference."""
    left, right = Script(theirs).run(), Script(ours).run()
    assert list(left) == list(right)
    assert len(left) > 200
    return [(call, *one) for call in left for one in differences(left[call], right[call])]


def covers(row, call, field, theirs):
    if row.ours_alone and theirs is not None:
        return False
    return re.fullmatch(row.calls, call) is not None and re.fullmatch(row.fields, field) is not None


def test_every_difference_is_intended(found):
    unknown = [
        f"{call}: {field}: {json.dumps(theirs)[:200]} there, {json.dumps(ours)[:200]} here"
        for call, field, theirs, ours in found
        if not any(covers(row, call, field, theirs) for row in INTENDED)
    ]
    assert not unknown, "\n".join(unknown)


@pytest.mark.parametrize("row", INTENDED, ids=lambda row: f"{row.name} ({row.calls})")
def test_every_row_is_needed(found, row):
    assert any(covers(row, call, field, theirs) for call, field, theirs, _ours in found)


def test_every_row_is_explained():
    text = DOCUMENT.read_text()
    named = set(re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE))
    assert named == {row.name for row in INTENDED}
