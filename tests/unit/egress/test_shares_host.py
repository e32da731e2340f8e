"""One loop, several cells: who is paced, who is not, and that nothing is lost or watched by mistake."""

import asyncio
import hashlib
import os
import socket
import threading
import time

import pytest

from saggar.egress.loop_host import run
from saggar.egress.shares_host import (
    ACTIVE_NS,
    EACH,
    FEW,
    FIRST_BYTES,
    LEAST_BYTES,
    MOST_BYTES,
    ROUND_NS,
    SLICE_NS,
    WEIGHED_NS,
    Shares,
)
from saggar.egress.splice_host import Splice


class Clock:
    """Both clocks: work passes no time unless it is told to."""

    def __init__(self):
        self.now = 10**12
        self.used = 0

    def turns(self, loop):
        return Shares(loop, clock=lambda: self.now, cpu=lambda: self.used)


async def next_turn(clock, ms=1):
    """Let a turn of `ms` milliseconds come."""
    clock.now += int(ms * 1e6)
    await asyncio.sleep(0.004)
    for _ in range(5):
        # on a busy host both timers are due in one round: what the turn calls, and who waits for that, come in the next ones
        await asyncio.sleep(0)


def work_hard(share):
    for _ in range(WEIGHED_NS // ROUND_NS):
        share.take(ROUND_NS)


def one_of_two(loop):
    """A cell alone has no rounds."""
    shares = Shares(loop)
    share = shares.join()
    shares.join()
    return share


def test_a_cell_alone_has_no_rounds():
    async def main():
        share = Shares(asyncio.get_running_loop()).join()
        for _ in range(3):
            share.take(ROUND_NS)
            assert not share.spent

    run(main())


def test_a_share_is_spent_and_renewed_with_the_round():
    async def main():
        share = one_of_two(asyncio.get_running_loop())
        share.take(ROUND_NS - 1)
        assert not share.spent
        share.take(1)
        assert share.spent
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not share.spent

    run(main())


def test_what_was_measured_counts_beyond_the_estimate():
    async def main():
        clock = Clock()
        share = clock.turns(asyncio.get_running_loop()).join()
        began, work = clock.now, share.work
        share.take(1000)
        clock.now += 900
        share.account(began, work)
        assert share.work == 1000  # the estimate was more
        clock.now += 4100
        share.account(began, work)
        assert share.work == 5000

    run(main())


def test_one_callback_is_counted_at_what_it_took_or_at_least():
    async def main():
        clock = Clock()
        share = clock.turns(asyncio.get_running_loop()).join()
        began, work = clock.now, share.work
        share.settle(began, work, 1000, 1)
        assert share.work == 1000
        began, work = clock.now, share.work
        clock.now += 5000
        share.take(2000)  # counted on the way: not once more
        share.settle(began, work, 1000, 1)
        assert share.work == 6000

    run(main())


def test_dear_bytes_are_read_in_small_pieces_and_cheap_ones_in_large():
    async def main():
        clock = Clock()
        share = clock.turns(asyncio.get_running_loop()).join()

        def callback(count, ns):
            began, work = clock.now, share.work
            clock.now += ns
            share.settle(began, work, 0, count)

        assert share.piece == FIRST_BYTES
        callback(share.piece, 4 * SLICE_NS)
        assert share.piece == FIRST_BYTES // 4
        callback(share.piece, 1000 * SLICE_NS)
        assert share.piece == LEAST_BYTES
        callback(share.piece, 1000 * SLICE_NS)
        assert share.piece == LEAST_BYTES
        callback(share.piece - 1, 0)  # not a full one: it says nothing
        assert share.piece == LEAST_BYTES
        for _ in range(20):
            callback(share.piece, SLICE_NS // 4)
        assert share.piece == MOST_BYTES
        callback(300, 5 * SLICE_NS)  # a handshake: not its bytes are dear
        assert share.piece == MOST_BYTES

    run(main())


def test_a_coroutine_of_a_spent_cell_waits_for_the_next_round():
    async def main():
        share = one_of_two(asyncio.get_running_loop())
        await share.turn()  # nothing was spent: no wait
        waiting = asyncio.ensure_future(share.turn())
        share.take(ROUND_NS)
        await asyncio.wait_for(waiting, 5)
        assert not share.spent
        assert not share.waits

    run(main())


@pytest.mark.parametrize("closed", [False, True])
def test_a_reset_that_is_told_in_a_spent_round_is_not_lost(closed):
    """Not every event loop tells it twice. Who has closed the socket by then is left alone."""

    async def main():
        loop = asyncio.get_running_loop()
        share = one_of_two(loop)
        (first, far_first), (second, far_second) = tcp_pair(), tcp_pair()
        told = []
        met = []

        def busy():
            first.recv(10)
            share.take(ROUND_NS)

        def reset():
            if share.spent:
                met.append(1)
                share.park(second.fileno(), reset)
                if closed:
                    loop.remove_reader(second)
                    share.drop(second.fileno())
                return
            with pytest.raises(ConnectionResetError):
                second.recv(10)
            told.append(1)
            loop.remove_reader(second)

        loop.add_reader(first, busy)
        loop.add_reader(second, reset)
        await asyncio.sleep(0)
        far_first.send(b"x")
        far_second.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        far_second.close()
        await asyncio.sleep(0.05)
        assert met == [1]
        assert told == ([] if closed else [1])
        for sock in (first, second, far_first):
            loop.remove_reader(sock)
            sock.close()

    run(main())


def test_a_cell_that_works_alone_is_not_paced():
    async def main():
        clock = Clock()
        turns = clock.turns(asyncio.get_running_loop())
        busy, _idle = turns.join(), turns.join()
        clock.now += ACTIVE_NS
        for _ in range(100):
            work_hard(busy)
            clock.now += WEIGHED_NS
            assert not busy.paced
            await asyncio.sleep(0)

    run(main())


def test_a_cell_that_works_little_is_not_paced_by_others():
    async def main():
        clock = Clock()
        turns = clock.turns(asyncio.get_running_loop())
        one, other = turns.join(), turns.join()
        for _ in range(100):
            clock.now += 11 * WEIGHED_NS
            for share in (one, other):
                work_hard(share)
                assert not share.paced

    run(main())


class Pair:
    """A heavy cell's readable socket beside a cell that is active."""

    def __init__(self, clock, turns, cost=10_000):
        self.clock = clock
        self.turns = turns
        self.heavy, self.light = self.turns.join(), self.turns.join()
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.others = []
        self.reads = 0
        self.cost = cost
        self.heavy.loop.add_reader(self.near.fileno(), self.on_readable)
        self.pace()

    def pace(self):
        self.clock.now += 2 * WEIGHED_NS
        self.light.take(1)
        work_hard(self.heavy)
        assert self.heavy.paced
        assert self.heavy.spent

    def more(self, count):
        """Further sockets, all with more to read than they will."""
        self.far.send(b"x" * 1000)
        for _ in range(count):
            near, far = socket.socketpair()
            far.send(b"x" * 1000)
            self.others += [near, far]
            self.heavy.loop.add_reader(near.fileno(), self.on_readable, near)

    def on_readable(self, near=None):
        near = near or self.near
        if self.heavy.spent:
            self.heavy.park(near.fileno(), self.on_readable, near)
            return
        near.recv(1)
        self.reads += 1
        self.clock.used += self.cost

    def close(self):
        for sock in (self.near, self.far, *self.others):
            self.heavy.loop.remove_reader(sock.fileno())
            sock.close()


def paced(body):
    async def main():
        clock = Clock()
        pair = Pair(clock, clock.turns(asyncio.get_running_loop()))
        try:
            await body(pair)
        finally:
            pair.close()

    run(main())


def test_a_paced_cell_gets_its_part_and_no_more():
    async def body(p):
        p.more(15)
        await asyncio.sleep(0.01)
        started = p.clock.now
        assert p.reads <= 16
        p.reads = 0
        for _ in range(40):
            p.light.take(1)
            await next_turn(p.clock)
        part = p.reads * p.cost / (p.clock.now - started)
        # one turn may overdraw by one callback
        assert EACH * 0.5 < part <= EACH * 1.1

    paced(body)


def test_others_at_work_hold_a_paced_cell_back_and_do_not_starve_it():
    async def body(p):
        p.more(15)
        await asyncio.sleep(0.01)
        p.reads = 0
        working = True

        async def work():
            while working:
                p.light.take(1)
                await asyncio.sleep(0)

        task = asyncio.ensure_future(work())
        for _ in range(3):
            await next_turn(p.clock)
        assert p.reads == 0
        started, steps = p.clock.now - 3_000_000, 40
        for _ in range(steps):
            await next_turn(p.clock)
        part = p.reads * p.cost / (p.clock.now - started)
        assert EACH * 0.5 < part <= EACH * 1.1
        working = False
        await task

    paced(body)


def test_other_cells_are_asked_between_two_pieces_of_one_turn():
    async def body(p):
        order = []
        near, far = socket.socketpair()

        def light():
            near.recv(1)
            order.append("light")

        def heavy(sock):
            if p.heavy.spent:
                p.heavy.park(sock.fileno(), heavy, sock)
                return
            sock.recv(1)
            order.append("heavy")
            far.send(b"x")

        p.heavy.loop.remove_reader(p.near.fileno())
        p.others += [near, far]
        near.setblocking(False)
        p.light.loop.add_reader(near.fileno(), light)
        for _ in range(3):
            a, b = socket.socketpair()
            p.others += [a, b]
            b.send(b"x")
            p.heavy.loop.add_reader(a.fileno(), heavy, a)
        await asyncio.sleep(0.01)
        assert not order
        await next_turn(p.clock)
        assert order == ["heavy", "light"] * 3

    paced(body)


def test_what_a_turn_overdraws_is_paid_back():
    async def body(p):
        p.cost = 1_000_000
        p.far.send(b"x" * 10)
        for _ in range(12):
            p.light.take(1)
            await next_turn(p.clock)
        assert 1 <= p.reads <= 2

    paced(body)


def test_between_turns_its_sockets_are_not_watched():
    async def body(p):
        p.cost = 10**9
        p.far.send(b"x" * 1000)
        p.light.take(1)
        await next_turn(p.clock)
        await next_turn(p.clock)
        assert p.reads == 1
        assert p.heavy.waits
        assert not p.heavy.loop.remove_reader(p.near.fileno())

    paced(body)


def test_a_cell_that_is_alone_again_is_let_go():
    async def body(p):
        p.far.send(b"x" * 1000)
        await next_turn(p.clock)
        before = p.reads
        p.clock.now += 2 * ACTIVE_NS
        await next_turn(p.clock)
        assert not p.heavy.paced
        await asyncio.sleep(0.05)
        assert before < p.reads == 1000

    paced(body)


def test_a_cell_that_has_become_quiet_is_let_go():
    async def body(p):
        for _ in range(30):
            p.light.take(1)
            await next_turn(p.clock)
        assert not p.heavy.paced

    paced(body)


def test_a_closed_descriptor_is_not_watched_again():
    """Its number may be another connection's by then."""

    async def body(p):
        p.cost = 10**9
        p.far.send(b"xxx")
        await next_turn(p.clock)
        await next_turn(p.clock)
        assert p.heavy.waits
        p.heavy.drop(p.near.fileno())
        p.clock.now += 2 * ACTIVE_NS
        await next_turn(p.clock)
        assert not p.heavy.paced
        assert not p.heavy.loop.remove_reader(p.near.fileno())

    paced(body)


def test_a_paced_cell_that_ends_leaves_the_turns():
    async def body(p):
        p.far.send(b"xxx")
        await asyncio.sleep(0.005)
        p.heavy.close()
        for _ in range(3):
            await next_turn(p.clock)
        assert p.reads <= 1
        assert not p.heavy.waits

    paced(body)


def test_a_fault_in_one_callback_does_not_end_the_turns():
    async def body(p):
        p.heavy.loop.set_exception_handler(lambda *_: None)
        p.heavy.park(p.near.fileno(), lambda: 1 / 0)
        p.more(3)
        for _ in range(10):
            p.light.take(1)
            await next_turn(p.clock)
        assert p.heavy.paced
        assert p.reads > 10

    paced(body)


def test_a_coroutine_waits_for_the_turn_and_may_be_cancelled():
    async def body(p):
        p.heavy.credit = -(10.0**12)
        waiting = [asyncio.ensure_future(p.heavy.turn()) for _ in range(2)]
        await asyncio.sleep(0.005)
        assert not any(w.done() for w in waiting)
        waiting[0].cancel()
        await asyncio.sleep(0)
        p.heavy.credit = 1.0
        p.light.take(1)
        await next_turn(p.clock)
        assert waiting[0].cancelled()
        assert waiting[1].done()
        assert not p.heavy.waits

    paced(body)


def test_work_outside_of_a_turn_is_paid_with_the_next_ones():
    async def body(p):
        p.heavy.charge(1_000_000)
        p.more(3)
        for _ in range(9):
            p.light.take(1)
            await next_turn(p.clock)
        assert p.reads <= 4

    paced(body)


def test_heavy_cells_share_alike():
    """What counts is what a cell costs, not how often it is called."""

    async def main():
        clock = Clock()
        turns = clock.turns(asyncio.get_running_loop())
        pairs = [Pair(clock, turns, cost) for cost in (10_000, 40_000)]
        try:
            for pair in pairs:
                pair.light.close()  # nobody else is there
                pair.more(15)
            for _ in range(100):
                await next_turn(clock, 0.2)
            used = [p.reads * p.cost for p in pairs]
            assert all(p.heavy.paced for p in pairs)
            assert used[0] == pytest.approx(used[1], rel=0.2)
            # no turn is left out: each has half of the time
            assert used[0] > 100 * 0.2e6 / 2 * 0.7
        finally:
            for pair in pairs:
                pair.close()

    run(main())


def test_who_takes_what_it_can_get_leaves_the_half():
    async def main():
        shares = Shares(asyncio.get_running_loop(), descriptors=24 + 3 * 12 + 2 * 100)
        greedy, second, few = (shares.join() for _ in range(3))
        for share in (greedy, second, few):
            share.held = []
            while not share.full():
                share.held.append(object())
        assert [len(s.held) for s in (greedy, second, few)] == [50, 25, 13]
        greedy.held.clear()
        assert not second.full()

    run(main())


def test_a_few_connections_are_had_in_any_case():
    async def main():
        share = Shares(asyncio.get_running_loop(), descriptors=10).join()
        share.held = [object()] * (FEW - 1)
        assert not share.full()
        share.held.append(object())
        assert share.full()

    run(main())


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
    near.setblocking(False)
    return near, far


def test_bulk_beside_another_cells_messages_is_paced_and_whole():
    """Real clocks, real sockets: a cell's bulk in a splice, and another cell that is answered meanwhile."""
    size = 192 * 1024 * 1024
    block = os.urandom(1024 * 1024)

    async def main():
        loop = asyncio.get_running_loop()
        turns = Shares(loop)
        shares = [turns.join(), turns.join()]
        splices, ends = [], []
        for share in shares:
            (near_c, client), (near_u, upstream) = tcp_pair(), tcp_pair()
            client.settimeout(60)
            upstream.settimeout(60)
            splice = Splice(loop, near_c, near_u, lambda: None, share=share)
            splice.start()
            splices.append(splice)
            ends.append((client, upstream))
        found = hashlib.sha256()
        stop = threading.Event()
        seen_paced = []

        def send():
            for _ in range(size // len(block)):
                ends[0][0].sendall(block)
            ends[0][0].shutdown(socket.SHUT_WR)

        def receive():
            count = 0
            while data := ends[0][1].recv(1 << 20):
                found.update(data)
                count += len(data)
            return count

        def talk():
            answered = 0
            while not stop.is_set():
                ends[1][0].sendall(b"ping")
                assert ends[1][1].recv(10) == b"ping"
                answered += 1
                seen_paced.append(shares[0].paced)
                time.sleep(0.001)
            return answered

        sending = asyncio.to_thread(send)
        talking = asyncio.ensure_future(asyncio.to_thread(talk))
        count, _ = await asyncio.gather(asyncio.to_thread(receive), sending)
        stop.set()
        answered = await talking
        for splice in splices:
            splice.abort()
        for pair in ends:
            for sock in pair:
                sock.close()
        return count, found.hexdigest(), answered, seen_paced

    count, digest, answered, seen_paced = run(main())
    expected = hashlib.sha256()
    for _ in range(size // len(block)):
        expected.update(block)
    assert (count, digest) == (size, expected.hexdigest())
    assert answered > 20
    assert any(seen_paced)
