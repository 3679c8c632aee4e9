"""`cua.space`: what is written is what is read, and a result entry ends a call in one of three ways."""

from __future__ import annotations

import json

from durable_harness.tools import Diagnostic, ToolResult
from durable_spaces import document
from durable_spaces.document import CUA_SPACE, Current, Decision, Identity, Mark, Outcome

HERE = Identity("i", "b")
MARK = Mark(7, "log/1:7:0", 3, HERE, "lease", "hash")
RESULT = ToolResult("out", True, {"exitCode": 1}, (Diagnostic("error", "exit_code", "1"),))


def stored() -> document.Json:
    value = CUA_SPACE.initial()
    document.write_mark(value, MARK, void=3)
    document.write_place(value, HERE, 12)
    return value


def through_json(value: document.Json) -> document.SpaceFacts:
    return document.read_facts(json.loads(json.dumps(value, allow_nan=False)))


def test_nothing_stored_is_a_conversation_before_its_first_call() -> None:
    assert document.read_facts(None) == through_json(CUA_SPACE.initial())


def test_a_mark_names_all_that_a_recovery_needs() -> None:
    facts = through_json(stored())
    assert facts.current == Current(MARK, void=3)
    assert (facts.place, facts.ledger_seq) == (HERE, 12)
    assert MARK.request_id == "log/1:7:0@3"


def test_an_outcome_comes_back_as_the_tool_returned_it() -> None:
    value = stored()
    document.write_outcome(value, RESULT, HERE)
    current = through_json(value).current
    assert current is not None
    assert current.outcome == Outcome(RESULT, HERE)


def test_a_new_mark_leaves_nothing_of_the_run_before() -> None:
    value = stored()
    document.write_decision(value, Decision.RERUN, "CommandLost", void=4)
    decided = through_json(value).current
    assert decided is not None
    assert (decided.decision, decided.void) == (Decision.RERUN, 4)
    document.write_mark(value, MARK, void=4)
    assert through_json(value).current == Current(MARK, void=4)


def test_a_call_with_an_outcome_ends_with_its_result() -> None:
    value = stored()
    document.write_outcome(value, RESULT, HERE)
    assert not document.write_result(value, 7, 99)
    facts = through_json(value)
    assert (facts.current, facts.restoring) == (None, None)
    assert value["last"] == {"task": 7, "entryId": 99}


def test_an_interrupted_call_ends_without_an_undo_of_what_another_session_did() -> None:
    value = stored()
    document.write_decision(value, Decision.INTERRUPT, "LeaseMoved", void=4)
    assert not document.write_result(value, 7, 99)
    assert through_json(value).restoring is None


def test_a_call_that_was_given_up_leaves_a_workspace_that_has_to_be_restored() -> None:
    value = stored()
    assert document.write_result(value, 7, 99)
    facts = through_json(value)
    assert (facts.current, facts.restoring) == (None, "CallGivenUp")


def test_the_result_of_another_call_changes_nothing() -> None:
    value = stored()
    assert not document.write_result(value, 8, 99)
    assert through_json(value).current == Current(MARK, void=3)
