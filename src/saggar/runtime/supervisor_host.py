"""The supervisor's loop: one launcher, one broker, any number of cells.

I1  A cell is done when the launcher said that its last process ended and its output was drained, or when the launcher died;
    either way its `Result` is made once, after the audit log has `run.end`.
I2  Whatever ends the broker or the launcher ends every cell that depended on it, with that cause.
I3  The broker starts when the first connection waits, never before; from then on only it holds the cell's sockets.
"""

from __future__ import annotations

import os
from select import POLLHUP, POLLIN
from time import monotonic

from saggar.core.errors import UsageError
from saggar.isolation import wire_host as wire
from saggar.runtime.poll_host import Loop
from saggar.runtime.result import Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from saggar.policy.model import EgressPolicy
    from saggar.runtime.broker_link_host import BrokerLink
    from saggar.runtime.held import Verdict
    from saggar.runtime.live_host import LiveControl
    from saggar.runtime.prepare_host import Prepared
    from saggar.runtime.stream_host import Capture, Drain, Feed, Relay

_DONTWAIT = 0x40  # MSG_DONTWAIT
#: How long output may take to arrive once the last process is gone: all of it is in pipes already.
_REFUSALS_SHOWN = 100
#: How long the broker may take to say what it counted, once the cell has ended.
_BROKER_S = 1.0


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


class Cell:
    """One contained command, seen from outside."""

    __slots__ = (
        "_loop",
        "approvals",
        "approved",
        "broker_lockdown",
        "bytes_down",
        "bytes_up",
        "cause",
        "detail",
        "ended",
        "enforcement",
        "failure",
        "held",
        "hold",
        "in_broker",
        "listeners",
        "live",
        "on_done",
        "on_frozen",
        "on_held",
        "on_started",
        "on_stopped",
        "on_unheld",
        "pending_removal",
        "pid",
        "prepared",
        "refusals",
        "refused",
        "result",
        "scratch",
        "shared",
        "specs",
        "started_s",
        "stderr",
        "stdout",
        "streams",
        "upper",
        "waits_until",
    )

    def __init__(self, prepared: Prepared, loop: Loop) -> None:
        self._loop = loop
        self.prepared = prepared
        self.pid = 0
        self.streams: list[Drain | Feed | Relay] = []
        self.stdout: Capture | None = None
        self.stderr: Capture | None = None
        self.listeners: list[int] = []
        self.specs: list[dict[str, Any]] = []
        self.in_broker = False
        self.live: LiveControl | None = None
        self.pending_removal = False
        self.waits_until = 0.0
        self.shared = False
        self.scratch = -1
        self.upper = -1
        self.cause = ""
        self.detail: dict[str, Any] = {}
        self.failure: dict[str, Any] | None = None
        self.enforcement: dict[str, Any] = {}
        self.ended: dict[str, Any] | None = None
        self.refusals: list[tuple[str, str, int]] = []
        self.refused = 0
        self.bytes_up = 0
        self.bytes_down = 0
        self.started_s = monotonic()
        self.result: Result | None = None
        self.on_done: Callable[[Result], None] | None = None
        self.on_started: Callable[[int], None] | None = None
        self.on_stopped: Callable[[int], None] | None = None
        #: requests that wait for a person, by number, as the broker told them
        self.held: dict[str, dict[str, Any]] = {}
        #: whether they wait although nobody here is told of them (`saggar egress approve` answers); else they are refused at once
        self.hold = False
        self.on_held: Callable[[dict[str, Any]], None] | None = None
        self.on_unheld: Callable[[str], None] | None = None
        self.on_frozen: Callable[[], None] | None = None
        #: asks that a person approved for the rest of the task (`egress.approved`), and how many there ever were
        self.approvals: list[dict[str, Any]] = []
        self.approved = 0
        #: what the broker could take away from itself; empty where none served this cell
        self.broker_lockdown: dict[str, str] = {}

    @property
    def egress(self) -> EgressPolicy:
        """The rules as they stand: the policy's, or what `saggar allow` and `revoke` made of them."""
        return (self.live.rules if self.live is not None else None) or self.prepared.policy.egress

    @property
    def id(self) -> str:
        return self.prepared.run.id

    def stream_ended(self) -> None:
        """Some stream closed; nothing depends on which."""

    def refuse(self, reason: str, host: str, port: int) -> None:
        self.refused += 1
        if len(self.refusals) < _REFUSALS_SHOWN:
            self.refusals.append((reason, host, port))

    def disk_full(self) -> bool:
        """Whether the scratch space had no byte or no inode left at the end."""
        if self.scratch < 0:
            return False
        try:
            space = os.fstatvfs(self.scratch)
        except OSError:
            return False
        return space.f_bfree == 0 or space.f_ffree == 0


class Supervisor:
    """Owns the control sockets. Not thread-safe: one thread turns the loop and makes the calls."""

    __slots__ = ("_broker", "_cells", "_control", "_discard", "launcher_dead", "loop")

    def __init__(self, control: wire.Socket, *, discard: Callable[[list[int]], None] = _close_all) -> None:
        """discard: closes a cell's sockets, which takes some 10 ms for the packet socket."""
        self.loop = Loop()
        self._discard = discard
        self._control = control
        self._cells: dict[str, Cell] = {}
        self._broker: BrokerLink | None = None
        self.launcher_dead = False
        self.loop.add(control.fileno(), POLLIN | POLLHUP, self._from_launcher)

    # towards the launcher

    def start(
        self, prepared: Prepared, streams: tuple[int, int, int], *, captures: tuple[Capture, Capture] | None = None
    ) -> Cell:
        """Record the start, then send it. Raises UsageError where the record cannot be written: nothing starts."""
        cell = Cell(prepared, self.loop)
        if captures is not None:
            cell.stdout, cell.stderr = captures
        try:
            prepared.audit.append(
                "run.start", layer="L1", effect="allow", reason="requested", detail=prepared.describe()
            )
        except OSError as error:
            prepared.abandon()
            raise UsageError(
                f"the run's start cannot be recorded, so it does not start: {(error.strerror or str(error)).lower()}",
                hint="make room in the state directory, or set `SAGGAR_STATE_DIR` to another place",
            ) from error
        self._cells[cell.id] = cell
        if prepared.missing is not None:
            self._complete(cell)
            return cell
        request, fds = prepared.request(streams)
        cell.specs = request["listeners"]
        try:
            wire.send(self._control, request, fds)
        except OSError:
            self._launcher_died()
            if cell.result is None:
                # it had died before this cell was known
                self._lost(cell, "launcher_died")
        prepared.session.sweep()
        return cell

    def expect(self, message: dict[str, Any] | None) -> None:
        """Have a child born for a run that is being prepared (`request_host.foresee`). For any thread: one send, and no matter if lost."""
        if message is None:
            return
        try:
            wire.send(self._control, message)
        except OSError:
            # the run that comes finds the launcher dead, and says so
            return

    def kill(self, cell: Cell, cause: str, **detail: Any) -> None:
        """End every process of the cell. The first cause stands."""
        self._tell({"op": "kill", "id": cell.id, "cause": cause, "detail": detail})

    def signal(self, cell: Cell, number: int) -> None:
        self._tell({"op": "signal", "id": cell.id, "signal": int(number)})

    def stop(self, cell: Cell) -> None:
        self._tell({"op": "stop", "id": cell.id})

    def resume(self, cell: Cell, terminal: int = -1) -> None:
        """Continue a stopped cell; with a terminal, in its foreground."""
        self._tell({"op": "continue", "id": cell.id, "foreground": terminal >= 0}, [terminal] if terminal >= 0 else [])

    def freeze(self, cell: Cell) -> None:
        """Stop every process of the cell until `resume`; `cell.on_frozen` is called when they all stand still."""
        self._tell({"op": "freeze", "id": cell.id})

    def _tell(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        try:
            wire.send(self._control, message, fds or [])
        except OSError:
            self._launcher_died()

    # the loop

    def turn(self, timeout_s: float | None = None) -> None:
        """One round of the loop; shorter than asked where a cell waits for the broker's last word."""
        waiting = [c for c in self._cells.values() if c.pending_removal]
        if waiting:
            soonest = max(0.0, min(c.waits_until for c in waiting) - monotonic())
            timeout_s = soonest if timeout_s is None else min(timeout_s, soonest)
        self.loop.turn(timeout_s)
        for cell in waiting:
            if cell.pending_removal and monotonic() >= cell.waits_until:
                self._complete(cell)

    def run_to_end(self, cell: Cell) -> Result:
        while cell.result is None:
            self.turn()
        return cell.result

    def _from_launcher(self, _events: int) -> None:
        while True:
            try:
                message, fds = wire.receive(self._control, _DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                message, fds = None, []
            if message is None:
                self._launcher_died()
                return
            cell = self._cells.get(message["id"])
            if cell is None:
                for fd in fds:
                    os.close(fd)
                continue
            getattr(self, "_on_" + message["event"])(cell, message, fds)

    def _on_started(self, cell: Cell, message: dict[str, Any], _fds: list[int]) -> None:
        cell.pid = message["pid"]
        if cell.on_started is not None:
            cell.on_started(cell.pid)

    def _on_listening(self, cell: Cell, message: dict[str, Any], fds: list[int]) -> None:
        cell.scratch = fds.pop(0)
        if message["upper"]:
            cell.upper = fds.pop(0)
        left_out = message["left_out"]
        cell.specs = [s for i, s in enumerate(cell.specs) if i not in left_out]
        cell.listeners = fds
        cell.shared = message["shared"]
        cell.prepared.mounted(message["layer"], message["started_ns"])
        for fd in fds:
            self.loop.add(fd, POLLIN, lambda _events: self._connected(cell))
        from saggar.runtime.live_host import LiveControl

        try:
            cell.live = LiveControl(
                self.loop,
                cell,
                lambda: self._rules_changed(cell),
                lambda number, verdict, uid: self.settle(cell, number, verdict, by="saggar egress", uid=uid),
            )
        except OSError:
            cell.live = None  # a file system without sockets: the run is as good, its rules stay as they are

    def _on_stopped(self, cell: Cell, message: dict[str, Any], _fds: list[int]) -> None:
        if cell.on_stopped is not None:
            cell.on_stopped(message["signal"])

    def _on_frozen(self, cell: Cell, _message: dict[str, Any], _fds: list[int]) -> None:
        if cell.on_frozen is not None:
            cell.on_frozen()

    def _on_failed(self, cell: Cell, message: dict[str, Any], _fds: list[int]) -> None:
        cell.failure = message

    def _on_ended(self, cell: Cell, message: dict[str, Any], _fds: list[int]) -> None:
        cell.ended = message
        cell.enforcement = message.get("enforcement", {})
        for stream in list(cell.streams):
            stream.rest()
        if cell.in_broker and self._broker is not None:
            # the broker's counts come with its answer
            cell.pending_removal = True
            cell.waits_until = monotonic() + _BROKER_S
            self._broker.remove(cell)
            return
        self._complete(cell)

    def fail(self) -> None:
        """This supervisor is broken (our bug): every cell ends, none of them as if nothing had been."""
        self._launcher_died("infrastructure")
        self._control.close()

    def _launcher_died(self, cause: str = "launcher_died") -> None:
        if self.launcher_dead:
            return
        self.launcher_dead = True
        self.loop.remove(self._control.fileno())
        for cell in list(self._cells.values()):
            self._lost(cell, cause)
        # the control groups were the launcher's to remove; one that lives holds its own
        from saggar.isolation.limits_host import sweep

        try:
            sweep(set())
        except OSError:
            return  # the next start's sweep finds them

    def _lost(self, cell: Cell, cause: str) -> None:
        if cell.ended is None:
            cell.ended = {"code": None, "status": None, "cause": cause, "detail": {}, "made": True}
            for stream in list(cell.streams):
                stream.rest()
        self._complete(cell)

    # the broker

    def _connected(self, cell: Cell) -> None:
        """Somebody waits at a listener: from here on the broker answers."""
        from saggar.runtime.broker_link_host import BrokerLink

        for fd in cell.listeners:
            self.loop.remove(fd)
        try:
            if self._broker is None:
                self._broker = BrokerLink(self.loop, self._broker_says, self._broker_died)
            self._broker.add(cell)
            cell.in_broker = True
            if cell.live is not None and cell.live.rules is not None:
                # the broker knows the synthetic addresses by the rules that were planned: those first
                self._broker.update(cell, cell.live.rules)
        except OSError as error:
            self.kill(cell, "broker_died", error=str(error))
        for fd in cell.listeners:
            os.close(fd)
        cell.listeners = []

    def _rules_changed(self, cell: Cell) -> bool:
        """Hand the rules of a running cell to the broker; False where it has none of this cell yet."""
        if cell.result is not None:
            raise ProcessLookupError("the run has ended")
        if not cell.in_broker or self._broker is None:
            return False
        self._broker.update(cell, cell.egress)
        return True

    def approve_for_task(self, cell: Cell) -> None:
        """Tell the broker of `cell.approvals` as they are now. Raises OSError."""
        self._rules_changed(cell)

    def answer(self, cell: Cell, number: str, verdict: str) -> bool:
        """A word on a request that the broker holds (`approved`, `denied`, `unattended`); False where it holds none of that number."""
        if self._broker is None or cell.held.pop(number, None) is None:
            return False
        try:
            self._broker.answer(cell, number, verdict)
        except OSError:
            return False  # it died: that is seen as its end of file, and ends the cell
        return True

    def settle(self, cell: Cell, number: str, verdict: Verdict, *, by: str, uid: int) -> dict[str, Any]:
        """Carry out a person's verdict on a held request; see `held_host.settle`."""
        from saggar.runtime.held_host import settle

        return settle(self, cell, number, verdict, by=by, uid=uid)

    def _broker_says(self, message: dict[str, Any]) -> None:
        event = message.get("event")
        if event == "fatal":
            for cell in list(self._cells.values()):
                if cell.in_broker and message.get("cell") in ("", cell.id):
                    self.kill(cell, "broker_died", fault=message.get("cause", ""))
            return
        cell_or_none = self._cells.get(message.get("cell", ""))
        if cell_or_none is None:
            return
        if event == "refused":
            cell_or_none.refuse(message["reason"], message["host"], message["port"])
        elif event == "ask":
            cell_or_none.held[message["id"]] = message
            if cell_or_none.on_held is not None:
                cell_or_none.on_held(message)
            elif not cell_or_none.hold:
                self.answer(cell_or_none, message["id"], "unattended")
        elif event == "added":
            cell_or_none.broker_lockdown = message["lockdown"]
        elif event == "unheld":
            cell_or_none.held.pop(message["id"], None)
            if cell_or_none.on_unheld is not None:
                cell_or_none.on_unheld(message["id"])
        elif event == "updated":
            if cell_or_none.live is not None:
                cell_or_none.live.updated()
        elif event == "removed":
            cell_or_none.refused = max(cell_or_none.refused, message.get("refused", 0))
            cell_or_none.bytes_up = message.get("bytes_up", 0)
            cell_or_none.bytes_down = message.get("bytes_down", 0)
            if cell_or_none.pending_removal:
                self._complete(cell_or_none)

    def _broker_died(self) -> None:
        self._broker = None
        for cell in list(self._cells.values()):
            if not cell.in_broker:
                continue
            cell.in_broker = False
            if cell.pending_removal:
                self._complete(cell)
            else:
                self.kill(cell, "broker_died")

    # the end

    def _complete(self, cell: Cell) -> None:
        if cell.result is not None:
            return
        cell.pending_removal = False
        del self._cells[cell.id]
        if cell.live is not None:
            cell.live.close()
            cell.live = None
        for fd in cell.listeners:
            self.loop.remove(fd)
        self._discard(cell.listeners)
        cell.listeners = []
        cell.result = cell.prepared.finish(cell)
        for fd in (cell.scratch, cell.upper):
            if fd >= 0:
                os.close(fd)
        cell.scratch = cell.upper = -1
        if cell.on_done is not None:
            cell.on_done(cell.result)

    def close(self) -> None:
        """End what still runs; the launcher does it when its socket closes."""
        if not self.launcher_dead:
            self.loop.remove(self._control.fileno())
        self._control.close()
        if self._broker is not None:
            self._broker.close()
            self._broker = None
