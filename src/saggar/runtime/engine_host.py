"""The one supervisor of a process that uses the Python API: a thread that turns the loop, and the launcher beneath it.

I1  The launcher is a fresh, small interpreter, started once: forking a large one cost 1.55 times a bare bubblewrap (measured).
I2  The thread that starts the launcher lives as long as the process: the kernel ties a parent's death to the thread.
I3  After a fork the child gets an engine of its own; the parent's sockets are not used by two.
I4  What is asked for is always called: after the thread's end by whoever asks, one at a time, and the supervisor says what became of it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from queue import SimpleQueue
from select import POLLIN

from saggar.core.errors import InvariantBroken
from saggar.isolation import launcher_host
from saggar.isolation import wire_host as wire
from saggar.runtime.caller_host import Session
from saggar.runtime.supervisor_host import Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Engine:
    """Runs callables on the supervisor's thread."""

    __slots__ = (
        "_calls",
        "_closing",
        "_ended",
        "_lock",
        "_preparing",
        "_ready",
        "_session",
        "_thread",
        "_wake_r",
        "_wake_w",
        "pid",
        "supervisor",
    )

    supervisor: Supervisor

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._session: Session | None = None
        self._calls: deque[Callable[[], None]] = deque()
        self._closing = False
        self._ended = False
        # one that its owner may take again: what is called may call
        self._lock = threading.RLock()
        self._preparing = threading.Lock()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._work, name="saggar-supervisor", daemon=True)
        self._thread.start()
        self._ready.wait()
        if not hasattr(self, "supervisor"):
            raise InvariantBroken("the launcher could not be started")

    @property
    def alive(self) -> bool:
        return self.pid == os.getpid() and self._thread.is_alive() and not self.supervisor.launcher_dead

    def session(self) -> Session:
        """What runs are prepared with; looked at anew where the environment names another state directory."""
        with self._preparing:
            if self._session is None or not self._session.current(os.environ):
                self._session = Session(dict(os.environ))
            return self._session

    def call(self, function: Callable[[], None]) -> None:
        """Have the thread call `function` soon; from the thread itself as well. Where the thread has ended (the launcher died), it is
        called here and now: a run that is started then ends as `launcher_died`, and nothing of it was started."""
        with self._lock:
            if self._ended:
                function()
                return
            self._calls.append(function)
        try:
            os.write(self._wake_w, b"1")
        except BlockingIOError:
            # the pipe is full of wake-ups already
            pass

    def close(self) -> None:
        """End every cell and the thread."""
        if self.pid != os.getpid() or self._closing:
            return
        self._closing = True
        self.call(lambda: None)
        self._thread.join(timeout=5)

    def _work(self) -> None:
        try:
            self.supervisor = Supervisor(_spawn_launcher(), discard=_Closer().close)
            self.supervisor.loop.add(self._wake_r, POLLIN, self._woken)
        finally:
            self._ready.set()
        try:
            while not self._closing and not self.supervisor.launcher_dead:
                self.supervisor.turn()
        except BaseException:
            # the cells' results say `infrastructure`; the trace goes where a thread's goes
            self.supervisor.fail()
            raise
        finally:
            self.supervisor.close()
            self._drop_calls()

    def _drop_calls(self) -> None:
        """What was asked for before the end and not called yet: runs are told, the rest has nothing to act on."""
        with self._lock:
            # from here on the supervisor is used by whoever calls, under the lock
            self._ended = True
            while self._calls:
                self._calls.popleft()()

    def _woken(self, _events: int) -> None:
        try:
            os.read(self._wake_r, 4096)
        except BlockingIOError:
            pass
        while self._calls:
            self._calls.popleft()()


class _Closer:
    """Closes descriptors on a thread of its own: the last descriptor of a packet socket waits for an RCU grace period."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: SimpleQueue[list[int]] = SimpleQueue()
        threading.Thread(target=self._work, name="saggar-closer", daemon=True).start()

    def close(self, fds: list[int]) -> None:
        self._queue.put(fds)

    def _work(self) -> None:
        while True:
            for fd in self._queue.get():
                os.close(fd)


_engine: Engine | None = None
_lock = threading.Lock()


def engine() -> Engine:
    """This process's engine, started on first use and again after a fork or the launcher's death."""
    global _engine  # noqa: PLW0603  # one a process, by design
    with _lock:
        if _engine is None or not _engine.alive:
            _engine = Engine()
            atexit.register(_engine.close)
        return _engine


def _after_fork() -> None:
    global _engine, _lock  # noqa: PLW0603  # the parent's thread and sockets are not the child's
    _engine = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _spawn_launcher() -> wire.Socket:
    ours, theirs = wire.pair()
    inherited = os.dup(theirs.fileno())
    theirs.close()
    os.set_inheritable(inherited, True)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    script = os.path.abspath(launcher_host.__file__)
    try:
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", script, str(inherited), root, str(os.getpid())],
            {"PATH": os.environ.get("PATH", "")},
            setsigmask=[],
            setsigdef=[2, 3, 15],
        )
    finally:
        os.close(inherited)
    return ours
