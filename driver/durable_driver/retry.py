"""Another try of an input that ended unanswered: what a new series of attempts waits for.

An input's end is final. The series goes on in the same conversation instead, by one further input for each token: the model sees
what it did before, and nothing that was done is repeated.
"""

from __future__ import annotations

from durable_harness import Conversation, Harness, Submission

GO_ON = "Go on with the task: what stopped it has been mended."


async def input_to_answer(harness: Harness, own: Submission, session_id: str, token: str | None) -> Submission:
    """The session's own input, or what was submitted, now or in an earlier drive, to go on with it.

    All drives of a series get the same: the request id is made of the token, and a try that is not over, or was answered, is
    waited for whatever the token (`retry` may be asked for while an earlier one is still open).
    """
    if await own.status() != "unanswered":
        return own
    prefix = f"{session_id}:retry:"
    newest = await harness.session.newest_submission(own.conversation_id)
    if newest is not None and (newest.request_id or "").startswith(prefix) and newest.status != "unanswered":
        return Submission(harness, newest)
    if token is None:
        return own
    return await Conversation(harness, own.conversation_id).submit(GO_ON, request_id=prefix + token)
