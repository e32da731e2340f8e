"""Whose turn it is in the one event loop, so that one cell's flood is not felt in the others.

I1  A cell that works alone is never paced: what nobody else needs is its own.
I2  While others are active, a cell that works more than `HEAVY` of the time gets at most `EACH` of it, one small piece of work at a
    time, and between two pieces the others are asked; where one of them has just worked the piece waits, up to `_SAVED_NS`. Between
    turns its sockets are not even watched, so its clients wait instead of taking the CPU that others need.
I3  Cells that are heavy together take turns (deficit round robin over cells, not over sockets; what a turn overdraws is paid back).
I4  A cell has at most as many connections as are left for all: whoever takes what it can get leaves the half.
I5  Nothing is lost: what is not read stays in the kernel, and TCP tells the client.

I6  What one callback does is bounded (`SLICE_NS`): where bytes turn out to be dear, fewer of them are read at once (`piece`).

Costs are nanoseconds of this process: the estimate or what was measured (`account`), whichever is more. A cell chooses its
bytes, so what a byte costs is never known before.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from saggar.egress.loop_host import Flows

#: what things cost: a small message one way, a byte, a connection from accept to splice or refusal, a name, a kernel's refusal
EVENT_NS = 12_000
BYTE_NS = 0.3
ACCEPT_NS = 120_000
NAME_NS = 20_000
PACKET_NS = 10_000
#: the same of a terminated host: what was read at once, a byte of it, a leaf with its context
REQUEST_NS = 60_000
CLEAR_BYTE_NS = 1.0
LEAF_NS = 2_000_000

#: a cell's share of one round of the loop: then the other cells have their turn. A socket left unread is reported again
ROUND_NS = 400_000
#: a cell is weighed after so much work, and is heavy with more than this part of the time since it was weighed last
WEIGHED_NS = 4_000_000
HEAVY = 0.1
#: of the time, for each heavy cell and for all of them together, while cells that are not heavy are active
EACH = 0.1
ALL = 0.5
#: descriptors of a connection (both ends; without a pipe bulk is copied), of a cell without any, and of the process
PER_CONNECTION, PER_CELL, PER_BROKER = 2, 12, 24
#: connections that a cell may have in any case
FEW = 8
#: a cell is active for so long after it did something
ACTIVE_NS = 100_000_000
_LOOK_NS = 5_000_000
#: read at once by a paced cell: a callback is not cut short
PACED_BYTES = 16 * 1024
#: what one callback may take, and what it reads at once: to begin with, at least, at most
SLICE_NS = 2_000_000
FIRST_BYTES, LEAST_BYTES, MOST_BYTES = 32 * 1024, 4 * 1024, 256 * 1024
_TURN_S = 0.001
#: so long a paced cell must have been light
_CALM_NS = 10_000_000
#: what a paced cell may save up: so long it is held back because others are at work, then it has its part all the same
_SAVED_NS = 400_000


def _nothing() -> None:
    """It is watched still."""


class Share:
    """One cell's part of the loop. Who works for a cell asks `spent` first, parks what must wait, and says what it took."""

    __slots__ = (
        "_all",
        "_next",
        "_parked",
        "_serving",
        "active",
        "clock",
        "credit",
        "held",
        "loop",
        "noted",
        "owed",
        "paced",
        "piece",
        "seen",
        "since",
        "spent",
        "weighed",
        "work",
    )

    def __init__(self, every: Shares) -> None:
        self._all = every
        self.loop = every.loop
        self.clock = every.clock
        #: how many bytes one callback reads: of those that came last as many as `SLICE_NS` is enough for
        self.piece = FIRST_BYTES
        self._serving = False
        #: the cell's open connections
        self.held: Collection[object] = ()
        #: True: do nothing now
        self.spent = False
        self.paced = False
        #: ns so far; those at the last weighing, and when that was
        self.work = 0.0
        self.weighed = 0.0
        self.since = every.clock()
        self._next = float(ROUND_NS)
        #: `work` when it was looked at last, and when it had last changed by then
        self.seen = 0.0
        self.active = 0
        self.credit = 0.0
        #: held back for so long that it goes on whatever the others do, until its credit is used up
        self.owed = False
        #: `work` when paced cells last asked whether others are at work
        self.noted = 0.0
        #: (descriptor, whether for writing) or a future to what watches it again, and to what is called with the turn
        self._parked: dict[object, tuple[Callable[[], object], Callable[[], object]]] = {}

    def take(self, cost_ns: float) -> None:
        """Count work that was done."""
        self.work = work = self.work + cost_ns
        if work >= self._next:
            self._next = work + ROUND_NS
            self.spent = True
            self._all.weigh(self)

    def charge(self, cost_ns: float) -> None:
        """Count work that is done outside of a turn, in a task; a paced cell pays for it with its next ones."""
        self.take(cost_ns)
        if self.paced and not self._serving:
            self.credit -= cost_ns

    def account(self, began: int, work: float) -> None:
        """Count what was done since `began` (of `clock`), when `work` had been counted, beyond what was counted since."""
        over = self.clock() - began - (self.work - work)
        if over > 0:
            self.charge(over)

    def settle(self, began: int, work: float, least_ns: float, count: int) -> None:
        """Count one callback, `least_ns` at least, as `account` does. count: the bytes that it was done for: the next ones may
        be fewer or more."""
        took = self.clock() - began
        over = took - (self.work - work)
        self.charge(max(least_ns, over))
        if took > SLICE_NS:
            if count > LEAST_BYTES:
                self.piece = max(LEAST_BYTES, count * SLICE_NS // took)
        elif count >= self.piece and 2 * took < SLICE_NS:
            self.piece = min(2 * self.piece, MOST_BYTES)

    def full(self) -> bool:
        """Whether the cell must have no further connection: the descriptors are everybody's (I4)."""
        return len(self.held) >= FEW and len(self.held) >= self._all.places_left()

    def renew(self) -> None:
        """A new round: first what had to wait in the last one."""
        if self.paced:
            return
        self.spent = False
        parked = self._parked
        try:
            for _ in range(len(parked)):
                if self.spent or not parked:
                    return
                _, callback = parked.pop(next(iter(parked)))
                callback()
        finally:
            if parked and not self.spent:
                self.loop.call_soon(self.renew)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def park(self, fd: int, callback: Callable[..., object], *args: Any) -> None:
        """`callback` is a reader of `fd` and the cell has no turn: call it with the next one. While paced `fd` is not watched.

        Without it a socket that was reset would be told of once: libuv stops watching what has an error.
        """
        watch: Callable[[], object] = _nothing
        if self.paced:
            self.loop.remove_reader(fd)
            watch = partial(self.loop.add_reader, fd, callback, *args)
        self._parked[fd, False] = watch, partial(callback, *args)

    def park_writer(self, fd: int, callback: Callable[[], object]) -> None:
        """The same for a writer."""
        watch: Callable[[], object] = _nothing
        if self.paced:
            self.loop.remove_writer(fd)
            watch = partial(self.loop.add_writer, fd, callback)
        self._parked[fd, True] = watch, callback

    def park_flow(self, flows: Flows, fd: int, callback: Callable[[], object], *, writing: bool = False) -> None:
        """The same for one side of a flow. While paced nothing is told of `fd` at all."""
        watch: Callable[[], object] = _nothing
        if self.paced:
            flows.pause(fd)
            watch = partial(flows.resume, fd)
        self._parked[fd, writing] = watch, callback

    def drop(self, fd: int) -> None:
        """`fd` is not read or written any longer: it may soon be another connection's."""
        if self._parked:
            self._parked.pop((fd, False), None)
            self._parked.pop((fd, True), None)

    def drop_reader(self, fd: int) -> None:
        """`fd` is not to be read now."""
        if self._parked:
            self._parked.pop((fd, False), None)

    async def turn(self) -> None:
        """Until the cell has its turn, or its next round; for coroutines."""
        if self.spent:
            ready = self.loop.create_future()
            self._parked[ready] = _nothing, partial(self._admit, ready)
            try:
                await ready
            finally:
                self._parked.pop(ready, None)

    def _admit(self, ready: asyncio.Future[None]) -> None:
        """Whoever waits goes on after this turn: it is paid for at once, and what it takes beyond that later."""
        self.take(REQUEST_NS)
        if not ready.done():
            ready.set_result(None)

    @property
    def waits(self) -> bool:
        return bool(self._parked)

    # -- the turn ----------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether something waits that the credit is enough for."""
        return self.credit > 0 and bool(self._parked)

    def serve(self) -> None:
        """Call the one that has been parked longest, for one piece of work; to be called where something is `ready`."""
        cpu = self._all.cpu
        before, work = cpu(), self.work
        self.spent = False
        self._next = work  # whatever it takes first is all that it takes: one accept, one name
        self._serving = True
        watch, callback = self._parked.pop(next(iter(self._parked)))
        try:
            watch()
            callback()
        finally:
            # of a terminated host much is done at the end of the round: then the estimate is nearer
            self._serving = False
            self.credit -= max(cpu() - before, self.work - work)
            self.owed = self.owed and self.credit > 0
            self.spent = self.paced

    def release(self) -> None:
        """No longer paced: everything is watched again, and has its turn in the next rounds."""
        self.paced = False
        for watch, _ in self._parked.values():
            watch()
        self.loop.call_soon(self.renew)

    def close(self) -> None:
        """The cell is gone; its sockets are closed by whoever owns them."""
        self._parked.clear()
        self._all.leave(self)


class Shares:
    """The shares of all cells of one broker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], int] = perf_counter_ns,
        cpu: Callable[[], int] = thread_time_ns,
        descriptors: int = 1 << 20,
    ) -> None:
        """descriptors: the limit of this process. clock, cpu: the time, and what of it this thread has used; in ns, for tests."""
        self.loop = loop
        self.clock = clock
        self.cpu = cpu
        self._descriptors = descriptors
        self._shares: set[Share] = set()
        self._paced: deque[Share] = deque()
        self._looked = 0
        self._last = 0
        #: cells that are not paced and were active lately
        self._light: list[Share] = []
        #: whether a turn is to come
        self._armed = False

    def join(self) -> Share:
        share = Share(self)
        self._shares.add(share)
        return share

    def leave(self, share: Share) -> None:
        self._shares.discard(share)
        if share.paced:
            share.paced = False
            self._paced.remove(share)

    def places_left(self) -> int:
        """Connections that the descriptors will do for, beside those that are open."""
        room = self._descriptors - PER_BROKER - PER_CELL * len(self._shares)
        return room // PER_CONNECTION - sum(len(s.held) for s in self._shares)

    def weigh(self, share: Share) -> None:
        """`share` has used its part of a round: let it go on in the next one, or pace it."""
        if share.paced:
            return
        if len(self._shares) == 1:
            # nobody to make room for: the more of what came is answered at once, the fewer appends and wake-ups it costs
            share.spent = False
            return
        now = self.clock()
        work = share.work - share.weighed
        if work >= WEIGHED_NS:
            heavy = work > HEAVY * (now - share.since)
            share.weighed, share.since = share.work, now
            if heavy and self._others(share, now):
                self._pace(share, now)
                return
        self.loop.call_soon(share.renew)

    def _pace(self, share: Share, now: int) -> None:
        share.paced = share.spent = True
        share.credit = 0.0
        share.owed = False
        if not self._armed:
            self._armed = True
            self._last = now
            self.loop.call_later(_TURN_S, self._turn)
        self._paced.append(share)

    def _look(self, now: int) -> bool:
        """Note who has worked; whether that was long enough ago to be worth it."""
        if now - self._looked < _LOOK_NS:
            return False
        self._looked = now
        for share in self._shares:
            if share.work != share.seen:
                share.seen = share.work
                share.active = now
        return True

    def _others(self, share: Share, now: int) -> bool:
        """Whether any other cell is active."""
        self._look(now)
        return any(s.active > now - ACTIVE_NS and s is not share for s in self._shares)

    def _turn(self) -> None:
        """What the paced cells have earned, and the first piece of it."""
        now = self.clock()
        elapsed, self._last = now - self._last, now
        if self._look(now):
            self._release(now)
        self._light = [s for s in self._shares if s.active > now - ACTIVE_NS and not s.paced]
        count = len(self._paced)
        if not count:
            self._armed = False
            return
        part = min(EACH, ALL / count) if self._light else 1 / count
        for share in self._paced:
            share.credit = min(share.credit + part * elapsed, _SAVED_NS)
            share.owed = share.owed or share.credit == _SAVED_NS
        # not now: what this round is asked next, before any socket, would be a second piece
        self.loop.call_soon(self._piece)

    def _at_work(self) -> bool:
        """Whether a cell that is not paced has worked since the last look: its answer may be on the way by now.

        The loop looks at its timers whenever something wakes it, so a turn comes right behind a request of another cell more often than not.
        """
        found = False
        for share in self._light:
            if share.work != share.noted:
                share.noted = share.work
                found = True
        return found

    def _piece(self) -> None:
        """One piece of work of one paced cell, then a look at the sockets of all others; so until all credit is used up."""
        paced = self._paced
        waits = self._at_work()
        try:
            for _ in range(len(paced)):
                share = paced[0]
                paced.rotate(-1)
                if share.ready and (share.owed or not waits):
                    share.serve()
                    break
        finally:
            # also where a callback failed: the others must not wait for ever
            if any(s.ready and (s.owed or not waits) for s in paced):
                self.loop.call_soon(self._piece)
            elif self._light or not any(s.waits for s in paced):
                self.loop.call_later(_TURN_S, self._turn)
            else:
                self.loop.call_soon(self._turn)

    def _release(self, now: int) -> None:
        """Cells that are alone again, or no longer heavy."""
        for share in tuple(self._paced):
            elapsed = now - share.since
            light = elapsed >= _CALM_NS and share.work - share.weighed < HEAVY * elapsed and not share.waits
            if elapsed >= _CALM_NS:
                share.weighed, share.since = share.work, now
            if light or not self._others(share, now):
                self._paced.remove(share)
                share.release()
