"""The Python API of the cell: `run`, `run_sync` and `spawn`.

    result = await saggar.run(["git", "status"], policy)
    result = saggar.run_sync("make | tail -3", timeout_s=60)     # a string is a shell's: /bin/sh -c
    async with await saggar.spawn(["python3", "-"]) as process:
        process.stdin.write(b"print(6 * 7)"); process.stdin.close()
        print(await process.stdout.read(), (await process.wait()).cause)

Each call has a deadline (the policy's, or `timeout_s`), gives a typed `Result` however the command ended, and raises SaggarError only
for what is wrong before anything was started: UsageError, Unenforceable.
"""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from saggar.core.errors import UsageError
from saggar.policy.model import Policy
from saggar.runtime.ask_host import Asker
from saggar.runtime.caller_host import Options
from saggar.runtime.engine_host import Engine, engine
from saggar.runtime.prepare_host import Prepared
from saggar.runtime.request_host import foresee
from saggar.runtime.stream_host import Capture, Drain, Feed, own_pipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from saggar.runtime.ask_host import Unattended
    from saggar.runtime.held import OnAsk
    from saggar.runtime.result import Result
    from saggar.runtime.supervisor_host import Cell


class FromPolicy:
    """Stands for "as the policy says" where None already means "none"."""

    __slots__ = ()


_POLICY = FromPolicy()


def _argv(command: Sequence[str] | str) -> list[str]:
    if isinstance(command, str):
        return ["/bin/sh", "-c", command]
    return [os.fspath(word) for word in command]


def _prepare(  # noqa: PLR0917  # called through an executor, which takes no keywords
    work: Engine,
    command: Sequence[str] | str,
    policy: Policy | None,
    cwd: str | None,
    timeout_s: float | FromPolicy | None,
    keep: int,
) -> Prepared:
    chosen = policy or Policy()
    timeout = chosen.limits.timeout_s if isinstance(timeout_s, FromPolicy) else timeout_s
    if timeout is not None and not timeout > 0:
        raise UsageError(f"`timeout_s` is not a positive number of seconds: `{timeout}`")
    opts = Options(
        cwd=os.path.abspath(cwd) if cwd is not None else os.getcwd(),
        timeout_s=timeout,
        keep_bytes=keep,
    )
    session = work.session()
    work.supervisor.expect(foresee(session, chosen, opts))
    return Prepared(session, chosen, _argv(command), opts)


class _Captured:
    """One run whose output is kept. Built on the caller's thread, lives on the engine's."""

    __slots__ = ("_asker", "_cell", "_done", "_engine", "_input", "_limit", "_prepared", "_total", "cancelled")

    def __init__(
        self,
        work: Engine,
        prepared: Prepared,
        data: bytes,
        done: Callable[[Result | BaseException], None],
        asker: Asker,
    ) -> None:
        self._engine = work
        self._prepared = prepared
        self._input = data
        self._done = done
        self._asker = asker
        self._limit = prepared.policy.limits.output_bytes
        self._total = 0
        self._cell: Cell | None = None
        self.cancelled = False

    def start(self) -> None:
        try:
            self._start()
        except BaseException as error:  # noqa: BLE001  # it belongs to the caller's thread
            self._prepared.abandon()
            self._done(error)

    def _start(self) -> None:
        prepared, supervisor = self._prepared, self._engine.supervisor
        owner = prepared.cell_uid
        if self._input:
            inner_in, ours_in = own_pipe(owner)
        else:
            inner_in, ours_in = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), -1
        ours_out, inner_out = own_pipe(owner)
        ours_err, inner_err = own_pipe(owner)
        inner = (inner_in, inner_out, inner_err)
        keep = prepared.options.keep_bytes
        try:
            cell = supervisor.start(prepared, inner, captures=(Capture(keep), Capture(keep)))
        except BaseException:
            for fd in (*inner, ours_in, ours_out, ours_err):
                if fd >= 0:
                    os.close(fd)
            raise
        self._cell = cell
        self._asker.serve(cell)
        for fd in inner:
            os.close(fd)
        loop, ended = supervisor.loop, cell.stream_ended
        cell.streams.append(Drain(loop, ours_out, lambda data: self._take(cell.stdout, data), ended))
        cell.streams.append(Drain(loop, ours_err, lambda data: self._take(cell.stderr, data), ended))
        if ours_in >= 0:
            cell.streams.append(Feed(loop, ours_in, self._input, ended))
        if cell.result is not None:
            self._finish(cell.result)
            return
        cell.on_done = self._finish
        if self.cancelled:
            supervisor.kill(cell, "cancelled")

    def _take(self, capture: Capture | None, data: bytes) -> None:
        if capture is None or self._cell is None:
            return
        capture.add(data)
        before = self._total
        self._total += len(data)
        if self._total > self._limit >= before:
            self._engine.supervisor.kill(self._cell, "output", limit="output", used=self._total, allowed=self._limit)

    def _finish(self, result: Result) -> None:
        cell = self._cell
        if cell is not None:
            for stream in list(cell.streams):
                stream.close()
        self._asker.close()
        self._done(result)

    def cancel(self) -> None:
        """End the run; its result says `cancelled`."""
        self.cancelled = True
        if self._cell is not None and self._cell.result is None:
            self._engine.supervisor.kill(self._cell, "cancelled")


def run_sync(
    command: Sequence[str] | str,
    policy: Policy | None = None,
    *,
    input: bytes = b"",  # noqa: A002  # subprocess's own word
    cwd: str | None = None,
    timeout_s: float | FromPolicy | None = _POLICY,
    keep_bytes: int | None = None,
    on_ask: OnAsk | Unattended = "refuse",
) -> Result:
    """Run a command to its end, contained, and give its Result. See `run`; this one blocks, and works in any thread. `on_ask` is
    called in an event loop of its own, on a thread of its own."""
    asker = Asker(on_ask, None)
    work = engine()
    keep = keep_bytes if keep_bytes is not None else (policy or Policy()).limits.output_bytes
    prepared = _prepare(work, command, policy, cwd, timeout_s, keep)
    gate = threading.Lock()
    gate.acquire()
    box: list[Result | BaseException] = []

    def done(outcome: Result | BaseException) -> None:
        box.append(outcome)
        gate.release()

    captured = _Captured(work, prepared, input, done, asker.of(work))
    work.call(captured.start)
    try:
        gate.acquire()
    except BaseException:
        work.call(captured.cancel)
        raise
    outcome = box[0]
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


async def run(
    command: Sequence[str] | str,
    policy: Policy | None = None,
    *,
    input: bytes = b"",  # noqa: A002  # subprocess's own word
    cwd: str | None = None,
    timeout_s: float | FromPolicy | None = _POLICY,
    keep_bytes: int | None = None,
    on_ask: OnAsk | Unattended = "refuse",
) -> Result:
    """Run a command to its end, contained, and give its Result.

    command: an argv, or a string for `/bin/sh -c`. policy: default: no egress, copy-on-write workspace, default limits. input: the
    command's stdin, which is at end of file otherwise. cwd: default for the workspace and the command's directory. timeout_s: instead of
    the policy's; None for none. keep_bytes: of stdout and of stderr, head and tail (default: all, up to `limits.output`, at which the
    run is ended with cause `output`). Cancelling the task ends every process of the cell before CancelledError leaves here.
    on_ask: `async def on_ask(ask: Ask) -> Verdict`, called for each request that a rule asks about, several at once where several
    wait, and cancelled where one no longer does; what it raises is a no. In its place `"refuse"`: such requests are refused at once; or
    `"hold"`: they wait for `saggar egress approve`.

    Raises: UsageError, Unenforceable; then nothing was started.
    """
    loop = asyncio.get_running_loop()
    asker = Asker(on_ask, loop)
    work = engine()
    keep = keep_bytes if keep_bytes is not None else (policy or Policy()).limits.output_bytes
    prepared = await _prepared(loop, work, command, policy, cwd, timeout_s, keep)
    future: asyncio.Future[Result] = loop.create_future()
    captured = _Captured(work, prepared, input, lambda outcome: _settle(loop, future, outcome), asker.of(work))
    work.call(captured.start)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        work.call(captured.cancel)
        await asyncio.wait([future])
        raise


async def _prepared(loop: asyncio.AbstractEventLoop, *arguments: Any) -> Prepared:
    """`_prepare`, not on the event loop: it opens files and may scan the workspace for up to 50 ms. A thread cannot be cancelled: what
    it prepares for a task that was, is given back before CancelledError leaves here."""
    future = loop.run_in_executor(None, _prepare, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(_give_back)
        await asyncio.wait([future])
        raise


def _give_back(future: asyncio.Future[Prepared]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().abandon()


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], outcome: object) -> None:
    def set_() -> None:
        if future.done():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    try:
        loop.call_soon_threadsafe(set_)
    except RuntimeError:
        # the caller's loop is closed: nobody waits
        return


def _same(protocol: asyncio.StreamReaderProtocol) -> asyncio.StreamReaderProtocol:
    return protocol


class Process:
    """A live contained process.

    id: the run's id. stdin, stdout, stderr: asyncio streams; unread output fills a pipe (64 KiB) and then holds the process, as with any
    child. Leaving the `async with` block ends every process of the cell.
    """

    __slots__ = ("_asker", "_cell", "_engine", "_future", "_loop", "_transports", "id", "stderr", "stdin", "stdout")

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(self, work: Engine, prepared: Prepared, asker: Asker) -> None:
        self._engine = work
        self._asker = asker
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Result] = self._loop.create_future()
        self._cell: Cell | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self.id = prepared.run.id

    async def _start(self, prepared: Prepared) -> None:
        owner = prepared.cell_uid
        inner_in, ours_in = own_pipe(owner)
        ours_out, inner_out = own_pipe(owner)
        ours_err, inner_err = own_pipe(owner)
        try:
            await self._connect(ours_in, ours_out, ours_err)
        except BaseException:
            for fd in (inner_in, inner_out, inner_err):
                os.close(fd)
            self._close()
            prepared.abandon()
            raise
        started: asyncio.Future[None] = self._loop.create_future()

        def start() -> None:
            outcome: BaseException | None = None
            try:
                cell = self._engine.supervisor.start(prepared, (inner_in, inner_out, inner_err))
                self._cell = cell
                self._asker.serve(cell)
                if cell.result is not None:
                    self._done(cell.result)
                else:
                    cell.on_done = self._done
            except BaseException as error:  # noqa: BLE001  # it belongs to the caller's thread
                prepared.abandon()
                outcome = error
            for fd in (inner_in, inner_out, inner_err):
                os.close(fd)
            _settle(self._loop, started, outcome)

        self._engine.call(start)
        try:
            await asyncio.shield(started)
        except asyncio.CancelledError:
            await asyncio.wait([started])
            if started.exception() is None:
                self.kill()
                await asyncio.wait([self._future])
            self._close()
            raise
        except BaseException:
            self._close()
            raise

    async def _connect(self, ours_in: int, ours_out: int, ours_err: int) -> None:
        loop = self._loop
        writing, ending = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(ours_in, "wb", buffering=0)
        )
        self.stdin = asyncio.StreamWriter(writing, ending, None, loop)
        self._transports.append(writing)
        for name, fd in (("stdout", ours_out), ("stderr", ours_err)):
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            reading, _ = await loop.connect_read_pipe(partial(_same, protocol), os.fdopen(fd, "rb", buffering=0))
            setattr(self, name, reader)
            self._transports.append(reading)

    def _done(self, result: Result) -> None:
        self._asker.close()
        _settle(self._loop, self._future, result)

    @property
    def result(self) -> Result | None:
        """How it ended, or None while it lives."""
        return self._future.result() if self._future.done() else None

    async def wait(self) -> Result:
        """Until the last process of the cell is gone. Output that nobody has read stays readable."""
        return await asyncio.shield(self._future)

    def send_signal(self, number: int) -> None:
        """Send a signal to the command itself (not to its children)."""
        cell = self._cell
        if cell is not None:
            self._engine.call(lambda: self._engine.supervisor.signal(cell, number))

    def terminate(self) -> None:
        self.send_signal(15)

    def kill(self, cause: str = "cancelled") -> None:
        """End every process of the cell at once."""
        cell = self._cell
        if cell is not None:
            self._engine.call(lambda: self._engine.supervisor.kill(cell, cause))

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if not self._future.done():
            self.kill()
        try:
            await self.wait()
        finally:
            self._close()

    def _close(self) -> None:
        for transport in self._transports:
            transport.close()


async def spawn(
    command: Sequence[str] | str,
    policy: Policy | None = None,
    *,
    cwd: str | None = None,
    timeout_s: float | FromPolicy | None = _POLICY,
    on_ask: OnAsk | Unattended = "refuse",
) -> Process:
    """Start a command, contained, and give it alive. Arguments and errors as in `run`."""
    loop = asyncio.get_running_loop()
    asker = Asker(on_ask, loop)
    work = engine()
    prepared = await _prepared(loop, work, command, policy, cwd, timeout_s, 0)
    process = Process(work, prepared, asker.of(work))
    await process._start(prepared)
    return process
