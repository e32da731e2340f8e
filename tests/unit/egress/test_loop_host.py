"""The broker's loop on real sockets: who is called, when, and who is not."""

import asyncio
import os
import socket

import pytest

from saggar.egress.loop_host import ENDS, FAILED, READABLE, WRITABLE, Loop, run, running


@pytest.fixture
def pair():
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        yield near, far


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_flow_is_told_of_each_edge_once_and_of_the_end(pair):
    near, far = pair
    told = []

    async def main():
        flows = running().flows
        flows.watch(near.fileno(), told.append)
        await turns()
        assert told == []
        far.send(b"x")
        await turns()
        await turns()
        assert told == [READABLE]  # unread, and not told again
        far.close()
        await turns()
        assert told[1] & ENDS
        flows.forget(near.fileno())

    run(main())


def test_what_is_there_already_is_told(pair):
    near, far = pair
    told = []

    async def main():
        far.send(b"x")
        running().flows.watch(near.fileno(), told.append)
        await turns()
        assert told == [READABLE]

    run(main())


def test_room_is_told_once_it_was_missing_and_is_back(pair):
    near, far = pair
    told = []

    async def main():
        flows = running().flows
        flows.watch(near.fileno(), told.append)
        with pytest.raises(BlockingIOError):
            while True:
                near.send(b"x" * 65536)
        flows.watch_room(near.fileno())
        await turns()
        assert told == []
        far.settimeout(5)
        while not told:
            far.recv(1 << 20)
            await turns()
        assert told[0] == WRITABLE

    run(main())


def test_a_paused_flow_is_told_what_came_meanwhile(pair):
    near, far = pair
    told = []

    async def main():
        flows = running().flows
        flows.watch(near.fileno(), told.append)
        flows.pause(near.fileno())
        far.send(b"x")
        await turns()
        assert told == []
        flows.resume(near.fileno())
        await turns()
        assert told
        assert told[0] & READABLE

    run(main())


def test_a_reset_is_told_as_a_failure():
    told = []

    async def main():
        with socket.create_server(("127.0.0.1", 0)) as server:
            far = socket.create_connection(server.getsockname())
            near, _ = server.accept()
        with near:
            running().flows.watch(near.fileno(), told.append)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            far.close()
            await turns()
            assert told[0] & FAILED

    run(main())


def test_an_event_does_not_reach_who_took_the_number_since():
    """Both are readable at once; the first one's callback closes the second one, and its number is given out again."""
    told = []

    async def main():
        loop = running()
        (first, far_first), (second, far_second) = socket.socketpair(), socket.socketpair()
        number = second.fileno()

        def on_first(_mask):
            first.recv(1)
            loop.flows.forget(number)
            second.close()
            taken, spare = socket.socketpair()
            other = taken if taken.fileno() == number else spare
            assert other.fileno() == number
            loop.flows.watch(number, lambda _mask: told.append("somebody else's"))
            made.extend((taken, spare))

        made = []
        loop.flows.watch(first.fileno(), on_first)
        loop.flows.watch(number, lambda mask: told.append(mask))
        far_first.send(b"x")
        far_second.send(b"x")
        await turns()
        assert told == []
        for sock in (first, far_first, far_second, *made):
            sock.close()

    run(main())


def test_one_failed_callback_is_reported_and_the_others_are_called(pair):
    near, far = pair
    seen, told = [], []

    async def main():
        loop = running()
        loop.set_exception_handler(lambda _, context: seen.append(context["exception"]))
        other_near, other_far = socket.socketpair()
        loop.flows.watch(near.fileno(), lambda mask: 1 // (mask - mask))
        loop.flows.watch(other_near.fileno(), told.append)
        far.send(b"x")
        other_far.send(b"x")
        await turns()
        assert [type(e) for e in seen] == [ZeroDivisionError]
        assert told == [READABLE]
        other_near.close()
        other_far.close()

    run(main())


def test_flows_that_never_rest_hold_up_neither_timers_nor_tasks():
    """Two flows that wake each other for ever, while a timer, a thread and a task want to go on."""

    async def main():
        loop = running()
        first, second = socket.socketpair()

        def bounce(sock):
            def on_event(_mask):
                sock.send(sock.recv(10))

            return on_event

        loop.flows.watch(first.fileno(), bounce(first))
        loop.flows.watch(second.fileno(), bounce(second))
        first.send(b"x")
        fired = loop.create_future()
        loop.call_later(0.01, fired.set_result, None)
        await asyncio.wait_for(fired, 5)
        await asyncio.wait_for(asyncio.to_thread(os.getpid), 5)
        await asyncio.wait_for(asyncio.sleep(0.01), 5)
        loop.flows.forget(first.fileno())
        loop.flows.forget(second.fileno())
        first.close()
        second.close()

    run(main())


def test_a_flow_that_asks_for_a_callback_gets_it_before_the_loop_sleeps(pair):
    near, far = pair

    async def main():
        loop = running()
        done = loop.create_future()
        loop.flows.watch(near.fileno(), lambda _mask: loop.call_soon(done.set_result, None))
        far.send(b"x")
        await asyncio.wait_for(done, 5)

    run(main())


def test_another_kind_of_loop_has_no_flows():
    async def main():
        with pytest.raises(RuntimeError, match="own event loop"):
            running()

    asyncio.run(main())
    loop = Loop()
    loop.close()
