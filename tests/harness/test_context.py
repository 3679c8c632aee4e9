"""What the model sees of a conversation: row by row."""

import pytest

from durable_harness import messages
from durable_harness._context import MISSING_RESULT, derive
from durable_harness.models import Message, ToolCallPart
from durable_harness.records import Edit, Entry

USER = messages.user("hello")
SYSTEM = messages.system("be kind")


def entry(id: int, kind: str, *model, **more) -> Entry:
    return Entry(id=id, conversation_id=1, kind=kind, model=list(model) or None, **more)


def said(id: int, text: str = "hm", *calls: str, status: str = "ok") -> Entry:
    parts = tuple(ToolCallPart(f"c{at}", name, {}) for at, name in enumerate(calls))
    return entry(id, "pi.assistant", messages.assistant(Message(text, tool_calls=parts)), data={"status": status})


def result(id: int, of: int, index: int, text: str) -> Entry:
    return entry(id, "pi.tool-result", messages.tool_result("c", "t", text), data={"entry": of, "index": index})


ROWS = {
    "as it was": ([entry(1, "pi.user", USER), said(2, "hi")], ["hello", "hi"]),
    "entries without messages": ([entry(1, "pi.user", USER), entry(2, "note", data={"n": 1})], ["hello"]),
    "aborted and failed answers": (
        [entry(1, "pi.user", USER), said(2, "half", status="aborted"), said(3, "bad", status="error"), said(4, "hi")],
        ["hello", "hi"],
    ),
    "results in call order": (
        [said(1, "", "t", "t"), result(2, 1, 1, "second"), result(3, 1, 0, "first")],
        ["", "first", "second"],
    ),
    "results move behind their call": (
        [said(1, "", "t"), entry(2, "pi.user", USER), result(3, 1, 0, "late")],
        ["", "late", "hello"],
    ),
    "a missing result": ([said(1, "", "t", "t"), result(2, 1, 1, "second")], ["", MISSING_RESULT, "second"]),
    "a result without a call": ([entry(1, "pi.user", USER), result(2, 9, 0, "orphan")], ["hello"]),
    "the newest head": (
        [entry(1, "pi.user", messages.user("old")), entry(2, "pi.reset", head=2), entry(3, "pi.user", USER)],
        ["hello"],
    ),
    "a head that keeps some": (
        [entry(1, "pi.user", messages.user("old")), entry(2, "pi.user", USER), entry(3, "pi.compaction", head=2)],
        ["hello"],
    ),
    "of two edits the newest": (
        [
            entry(1, "pi.user", messages.user("old")),
            entry(2, "x", edits=[Edit(target=1)]),
            entry(3, "x", edits=[Edit(target=1, messages=[USER])]),
        ],
        ["hello"],
    ),
    "an omitted entry": ([entry(1, "pi.user", USER), entry(2, "x", edits=[Edit(target=1, messages=None)])], []),
    "the system message leads": ([entry(1, "pi.user", USER), entry(2, "pi.system", SYSTEM)], ["be kind", "hello"]),
}


@pytest.mark.parametrize(("entries", "contents"), ROWS.values(), ids=ROWS)
def test_row(entries: list[Entry], contents: list[str]) -> None:
    assert [message["content"] for message in derive(entries)] == contents


def test_a_result_stands_behind_the_call_that_it_belongs_to_when_ids_repeat() -> None:
    """The provider's call ids are not unique: entry and index are."""
    entries = [said(1, "a", "t"), result(2, 1, 0, "one"), said(3, "b", "t"), result(4, 3, 0, "two")]
    assert [message["content"] for message in derive(entries)] == ["a", "one", "b", "two"]


def test_what_a_provider_hands_over_can_be_stored() -> None:
    calls = (
        ToolCallPart("c", "t", {1: "x"}),
        ToolCallPart("d", "t", {"x": float("nan")}),
        ToolCallPart("e", "t", {"x": 1}),
    )
    value = messages.assistant(Message("a\udcff", tool_calls=calls))
    assert value["content"] == "a\ufffd"
    assert [call["arguments"] for call in value["tool_calls"]] == [None, None, {"x": 1}]
