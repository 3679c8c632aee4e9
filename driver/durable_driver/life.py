"""The life of one drive, inside its event loop: from the first heartbeat to the report.

Order: heartbeat, log (claimed), `start` (Space fenced, harness, input admitted), wait, Space ensured, close, report. A drive that
fails for good ensures the Space as well, if it can. Every exit
goes through `judge_ending`; a report is written whatever happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from durable_base.crash import crash_point
from durable_base.floor import Floor, new_incarnation
from durable_base.stopping import STOP, take_stop
from durable_driver.context import DriveContext, open_context
from durable_driver.environment import DriveEnvironment
from durable_driver.errors import StoppedError
from durable_driver.events import EventLine
from durable_driver.exit_codes import PERMANENT, Ending, judge_ending
from durable_driver.heartbeat import Heartbeat
from durable_driver.http import LifeServer
from durable_driver.metrics import DriverMetrics
from durable_driver.report import DriveFacts, compose_report, facts_line, write_report
from durable_driver.retry import input_to_answer
from durable_driver.stream import ReportStream
from durable_driver.watch import Watch, read_usage
from durable_harness import Answer, BlockedError, Submission

T = TypeVar("T")
Start = Callable[[DriveContext], Awaitable[Submission]]
log = logging.getLogger("durable_driver")

_FINAL_SECONDS = 2.0  # for the last message of the report stream; the report file says the same


class Life:
    """Of one drive. `ending` once `run` has returned; `closed` False: something did not end, and the process must be cut off."""

    def __init__(self, environment: DriveEnvironment, start: Start) -> None:
        self.closed = True
        self._environment = environment
        self._start = start
        self._own = Floor(environment.epoch, new_incarnation())  # drawn once per process (rule 1)
        self._events = EventLine(sys.stdout, environment.session, environment.epoch)
        self._metrics = DriverMetrics()
        self._heartbeat = Heartbeat(environment.heartbeat_seconds)
        self._stop: asyncio.Future[StoppedError] = asyncio.get_running_loop().create_future()
        self._stream = (
            ReportStream(environment.coordinator, self._ordered, choose=random.Random())
            if environment.coordinator is not None
            else None
        )
        self._watch = Watch(self._events, self._metrics, self._stream)
        self._context: DriveContext | None = None
        self._usage: dict[str, float] = {}

    async def run(self) -> tuple[Ending, BaseException | None]:
        """Never raises: whatever goes wrong is an ending."""
        answer: str | None = None
        failure: BaseException | None = None
        server: LifeServer | None = None
        try:
            server = self._begin()
            answer = await self._until_stopped(self._work())
        except BaseException as error:  # also what nobody foresaw must be judged and reported
            failure = error
        ending = judge_ending(failure)
        if ending.code == PERMANENT and self._context is not None:
            await self._leave_space(self._context)
        await self._close()
        await self._report(ending, answer)
        self._heartbeat.stop()
        if server is not None:
            server.close()
        return ending, failure

    def _begin(self) -> LifeServer:
        environment = self._environment
        loop = asyncio.get_running_loop()
        for number in STOP:
            loop.add_signal_handler(number, self._signalled, number)
        take_stop()
        # Before the log is opened: an open that takes long is not a freeze (rule 21).
        self._heartbeat.subscribe(self._beat)
        self._heartbeat.start()
        server = LifeServer(environment.http, self._heartbeat.age_seconds, environment.stall_seconds, self._metrics)
        self._metrics.epoch.set(environment.epoch)
        self._events.emit("driver.started", attempt=environment.attempt, resumed=environment.resume, http=server.port)
        if self._stream is not None:
            self._stream.start()
        return server

    async def _work(self) -> str:
        """The answer. Raises whatever ended the drive otherwise."""
        self._context = context = await open_context(
            self._environment, self._own.incarnation, self._watch, self._events
        )
        submission = await self._input(context, await self._start(context))
        answer = await self._answer(context, submission)
        self._events.emit("settled", entry=answer.entry_id)
        crash_point("driver.settled")
        await context.ensure_space()
        crash_point("driver.space_ensured")
        return answer.text

    async def _input(self, context: DriveContext, own: Submission) -> Submission:
        if context.harness is None:
            return own
        environment = self._environment
        chosen = await input_to_answer(context.harness, own, environment.uid, environment.retry_token)
        if chosen.id != own.id:
            self._events.emit("input.retried", submission=chosen.id)
        return chosen

    async def _answer(self, context: DriveContext, submission: Submission) -> Answer:
        try:
            return await submission.wait()
        except BlockedError as blocked:
            # Attempts count from 1 again: somebody gave the session a new series, so a parked task may run once more.
            new_series = self._environment.resume and self._environment.attempt == 1
            if context.harness is None or blocked.reason != "restart_limit" or not new_series:
                raise
            self._events.emit("task.released", task=blocked.task_id)
            await context.harness.retry_task(blocked.task_id)
        return await submission.wait()

    async def _until_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """`work`, unless somebody asks the drive to stop first: then it is let go of where it stands, and StoppedError raised.

        Nothing is waited for: commits that were admitted are stored by `close`, and a command that runs in the Space is taken
        up by the next drive (rule 37).
        """
        task = asyncio.ensure_future(work)
        await asyncio.wait((task, self._stop), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait((task,), timeout=self._environment.grace_seconds)
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error  # fenced, or failed, in the same moment: that says more
        raise self._stop.result()

    async def _leave_space(self, context: DriveContext) -> None:
        """Best effort, for as long as a stop may take: why the drive failed is settled, and stays what is told."""
        leaving = asyncio.ensure_future(context.leave_space())
        await asyncio.wait(
            (leaving, self._stop), timeout=self._environment.grace_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if not leaving.done():
            leaving.cancel()
            await asyncio.wait((leaving,), timeout=self._environment.grace_seconds)
        if not leaving.done() or leaving.cancelled():
            log.warning("the Space could not be made what the log says in time")
        elif (error := leaving.exception()) is not None:
            log.warning("the Space could not be made what the log says: %s", type(error).__name__)

    async def _close(self) -> None:
        if self._context is None:
            return
        with contextlib.suppress(Exception):
            if self._context.harness is not None:
                self._usage = await read_usage(self._context.harness.session)
        closing = asyncio.ensure_future(self._context.close())
        await asyncio.wait((closing,), timeout=self._environment.grace_seconds)
        self.closed = closing.done()
        if not self.closed:
            log.warning("something that ran did not end within %g s", self._environment.grace_seconds)
        elif (error := closing.exception()) is not None:
            # The log holds all that was acknowledged; how the drive ended is decided already.
            log.warning("closing failed: %s", type(error).__name__)

    async def _report(self, ending: Ending, answer: str | None) -> None:
        environment = self._environment
        facts = DriveFacts(
            session=environment.session,
            epoch=environment.epoch,
            floor=self._own,
            # `auto` is transactional for as long as it is the only mode that is served.
            mode="transactional" if environment.mode == "auto" else environment.mode,
            entries=self._watch.entries,
            last_entry=self._watch.last_entry,
            recoveries=self._watch.recoveries,
            model_errors=self._watch.model_errors,
            usage=self._usage,
            answer=answer,
        )
        report = compose_report(facts, ending)
        try:
            write_report(environment.report_path, report)
            crash_point("driver.report_written")
        except OSError as error:
            log.warning("the report can't be written (%s): check DURABLE_REPORT", error.strerror)
        if self._stream is not None:
            await self._stream.finish(facts_line(report), _FINAL_SECONDS)
        self._events.emit("driver.ended", code=ending.code, outcome=ending.outcome, reason=ending.reason)

    def _beat(self, unix_ms: int) -> None:
        self._metrics.heartbeat.set(unix_ms / 1000)
        self._events.beat(unix_ms)
        if self._stream is not None:
            self._stream.heartbeat(self._environment.epoch, unix_ms)

    def _signalled(self, number: signal.Signals) -> None:
        self._ask_to_stop(StoppedError("Stopped", f"asked to stop by {number.name}"))

    def _ordered(self, reason: str) -> None:
        self._ask_to_stop(StoppedError(reason or "Stopped", "asked to stop by the coordinator"))

    def _ask_to_stop(self, why: StoppedError) -> None:
        if not self._stop.done():
            self._stop.set_result(why)
