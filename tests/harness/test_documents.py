"""Documents: what is stored of them, what can be read as of an entry, and deltas that give back what they were made from."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_harness import _ops, sqlite
from durable_harness._json import copy_strict, same, scrub_text
from durable_harness.documents import DocumentToken
from durable_harness.errors import CorruptLogError, InvalidRecordError
from durable_harness.session import Session

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab", max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(json_values, json_values)
def test_a_delta_gives_the_new_value_from_the_old_one(old, new) -> None:
    before = copy_strict(old)
    ops = _ops.diff(old, new)
    assert same(old, before), "diff changes nothing"
    assert same(_ops.apply(copy_strict(old), ops), copy_strict(new))
    assert bool(ops) == (not same(old, copy_strict(new)))


@pytest.mark.parametrize(
    ("old", "new", "ops"),
    [
        ({"t": "ab"}, {"t": "abc"}, [["a", ["t"], "c"]]),
        ({"l": [1, 2, 3]}, {"l": [1, 3]}, [["l", ["l"], 1, 1, []]]),
        ({"l": [{"n": 1}, {"n": 2}]}, {"l": [{"n": 1}, {"n": 3}]}, [["s", ["l", 1, "n"], 3]]),
        ({"a": 1, "b": 2}, {"b": 2}, [["d", ["a"]]]),
        ({"n": 1}, {"n": True}, [["s", ["n"], True]]),
        ([1], {"x": 1}, [["r", {"x": 1}]]),
    ],
)
def test_deltas_are_small(old, new, ops) -> None:
    assert _ops.diff(old, new) == ops


@pytest.mark.parametrize(
    "op", [["d", ["gone"]], ["a", ["n"], "x"], ["l", ["l"], 5, 1, []], ["s", ["l", 9], 1], ["?", ["n"]]]
)
def test_a_delta_that_does_not_fit_is_corruption(op) -> None:
    with pytest.raises(CorruptLogError):
        _ops.apply({"n": 1, "l": [1]}, [op])


def test_text_from_outside_becomes_storable() -> None:
    assert scrub_text("a\ud83d\ude00b\udcff") == "a\U0001f600b�"


async def open_session(path: Path) -> Session:
    session = await Session.load(await sqlite(path).open_log())
    if session.conversation() is None:
        await session.commit(lambda tx: tx.create_conversation(root=True))
    return session


def revisions(path: Path) -> int:
    with sqlite3.connect(path) as db:
        count = db.execute("SELECT count(*) FROM document_revisions").fetchone()[0]
    db.close()
    return count


@pytest.mark.parametrize(("history", "rows"), [("latest", (11, 1, 0)), ("rewindable", (11, 12, 12))])
async def test_revisions_that_are_kept(tmp_path: Path, history, rows: tuple[int, int, int]) -> None:
    """Case 12: a base and ten deltas, a base, retirement."""
    path = tmp_path / "log.db"
    token = DocumentToken("d", lambda: {"n": 0}, history=history, checkpoint_when=lambda value, deltas: deltas > 10)
    session = await open_session(path)
    for n in range(11):
        await session.commit(lambda tx, n=n: tx.doc(token).value.update(n=n))
    assert revisions(path) == rows[0]
    await session.commit(lambda tx: tx.doc(token).value.update(n=11))
    assert revisions(path) == rows[1]
    await session.commit(lambda tx: tx.retire(token))
    assert revisions(path) == rows[2]
    assert await session.document(token) is None
    await session.close_storage()


async def test_a_rewindable_document_as_of_entries(tmp_path: Path) -> None:
    """Case 13: forty changes, a base at 20, reopened: exact as of each; the value is that after the entry's commit."""
    path = tmp_path / "log.db"
    token = DocumentToken(
        "d",
        lambda: {"n": 0, "words": []},
        history="rewindable",
        fork="asOf",
        checkpoint_when=lambda value, deltas: value["n"] == 20,
    )
    session = await open_session(path)
    entries = []
    before = await session.commit(lambda tx: tx.append_entry("before"))
    for n in range(1, 41):

        def change(tx, n=n):
            entry = tx.append_entry("change")
            tx.doc(token).value["n"] = n
            tx.doc(token).value["words"].append(f"w{n}")
            return entry.id

        entries.append(await session.commit(change))
    await session.close_storage()
    session = await open_session(path)
    for n in (1, 5, 19, 20, 21, 40):
        value = await session.document(token, as_of=entries[n - 1])
        assert value == {"n": n, "words": [f"w{m}" for m in range(1, n + 1)]}
    assert await session.document(token, as_of=before.id) is None
    with pytest.raises(InvalidRecordError, match="no entry"):
        await session.document(token, as_of=10**6)
    await session.close_storage()


async def test_a_retired_document_as_of_an_entry_before(tmp_path: Path) -> None:
    """Case 69, without views: the old incarnation's value before, nothing between, the new one's after."""
    token = DocumentToken("d", lambda: "old", history="rewindable")
    session = await open_session(tmp_path / "log.db")

    def change(tx, value):
        if value is None:
            tx.retire(token)
        else:
            tx.doc(token).value = value
        return tx.append_entry("x").id

    ids = [await session.commit(lambda tx, v=v: change(tx, v)) for v in ("old", None, "new")]
    assert [await session.document(token, as_of=entry) for entry in ids] == ["old", None, "new"]
    await session.close_storage()


async def test_versions_of_a_document(tmp_path: Path) -> None:
    """Older: migrated in memory by a read, in the log by the next write. Newer, or without a way: refused."""
    path = tmp_path / "log.db"
    first = DocumentToken("d", lambda: {"n": 1})
    second = DocumentToken("d", lambda: {"m": 0}, version=2, migrate=lambda version, value: {"m": value["n"] + version})
    session = await open_session(path)
    await session.commit(lambda tx: tx.doc(first))
    assert await session.document(second) == {"m": 2}
    assert await session.document(first) == {"n": 1}, "a read stores nothing"
    with pytest.raises(InvalidRecordError, match="stored in version 1"):
        await session.document(DocumentToken("d", dict, version=3))
    await session.commit(lambda tx: tx.doc(second))
    with pytest.raises(InvalidRecordError, match="stored in version 2"):
        await session.document(first)
    await session.close_storage()
    session = await open_session(path)
    assert await session.document(second) == {"m": 2}
    await session.close_storage()


async def test_documents_of_session_conversation_and_task(tmp_path: Path) -> None:
    """Each scope has its own; a task's documents end with the task."""
    by_scope = {scope: DocumentToken("d", lambda: 0, scope=scope) for scope in ("session", "conversation", "task")}
    session = await open_session(tmp_path / "log.db")
    task = await session.commit(lambda tx: tx.create_task("k", {"phase": "p"}))

    def write(tx) -> None:
        tx.doc(by_scope["session"]).value = "s"
        tx.doc(by_scope["conversation"], 1).value = "c"
        tx.doc(by_scope["task"], task.id).value = "t"

    await session.commit(write)
    assert await session.document(by_scope["session"]) == "s"
    assert await session.document(by_scope["conversation"]) == "c"
    assert await session.document(by_scope["task"], task.id) == "t"
    with pytest.raises(InvalidRecordError):
        await session.document(by_scope["task"])
    from msgspec.structs import replace

    from durable_harness.records import Outcome, Terminal

    ended = replace(task, state=Terminal(outcome=Outcome(status="completed")))
    await session.commit(lambda tx: tx.put_task(ended))
    assert await session.document(by_scope["task"], task.id) is None
    with pytest.raises(InvalidRecordError, match="has ended"):
        await session.commit(lambda tx: tx.doc(by_scope["task"], task.id))
    await session.close_storage()


def test_tokens_that_contradict_themselves() -> None:
    with pytest.raises(InvalidRecordError):
        DocumentToken("d", dict, fork="asOf")
    with pytest.raises(InvalidRecordError):
        DocumentToken("d", dict, scope="session", history="rewindable")
