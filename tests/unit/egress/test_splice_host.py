"""Two real sockets joined on uvloop: every way in which either side can end."""

import asyncio
import fcntl
import socket
import struct

import pytest

from saggar.egress.loop_host import run as run_loop
from saggar.egress.shares_host import Shares
from saggar.egress.splice_host import _PIPE_BYTES, _WIDE_BYTES, _WIDE_PIPES, Splice, _Wide


def pair():
    """(near, far) of a TCP connection; near is what the broker holds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
    near.setblocking(False)
    return near, far


class Joined:
    def __init__(self, **options):
        loop = asyncio.get_running_loop()
        near_client, self.client = pair()
        near_upstream, self.upstream = pair()
        self.done = loop.create_future()
        self.splice = Splice(
            loop, near_client, near_upstream, lambda: self.done.set_result(None), share=Shares(loop).join(), **options
        )
        self.splice.start()

    async def call(self, function, *args):
        return await asyncio.to_thread(function, *args)


def run(main, **options):
    async def inner():
        joined = Joined(**options)
        for sock in (joined.client, joined.upstream):
            sock.settimeout(20)
        try:
            await main(joined)
        finally:
            joined.splice.abort()
            joined.client.close()
            joined.upstream.close()

    run_loop(inner())


def receive(sock, size):
    got = b""
    while len(got) < size and (part := sock.recv(1 << 20)):
        got += part
    return got


def test_bytes_pass_both_ways_and_ends_are_passed_on():
    async def main(j):
        j.client.sendall(b"question")
        assert await j.call(receive, j.upstream, 8) == b"question"
        j.client.shutdown(socket.SHUT_WR)
        assert await j.call(j.upstream.recv, 10) == b""
        assert j.splice.half_closed
        j.upstream.sendall(b"answer")
        assert await j.call(receive, j.client, 6) == b"answer"
        j.upstream.close()
        assert await j.call(j.client.recv, 10) == b""
        await asyncio.wait_for(j.done, 10)
        assert (j.splice.up.count, j.splice.down.count, j.splice.moved) == (8, 6, 14)

    run(main)


@pytest.mark.parametrize("side", ["client", "upstream"])
@pytest.mark.parametrize("data", [b"", b"last words"])
def test_a_reset_ends_both_sides(side, data):
    """Also behind unread bytes, where the event loop stops watching and never tells."""

    async def main(j):
        dying, other = (j.client, j.upstream) if side == "client" else (j.upstream, j.client)
        dying.sendall(data) if data else None
        dying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        dying.close()

        def read_to_end():
            try:
                while other.recv(100):
                    pass
            except ConnectionResetError:
                pass
            other.close()

        await j.call(read_to_end)
        await asyncio.wait_for(j.done, 10)

    run(main)


def test_large_streams_pass_whole_with_a_slow_reader():
    size = 24 << 20
    body = bytes(range(256)) * (size // 256)

    async def main(j):
        sending = asyncio.create_task(j.call(j.client.sendall, body))
        await asyncio.sleep(0.2)  # the reader is slow: the windows fill up
        assert not sending.done()
        assert await j.call(receive, j.upstream, size) == body
        await sending
        assert j.splice.up.count == size

    run(main)


@pytest.mark.parametrize("size", [100, 8 << 20])
def test_a_budget_is_asked_before_bytes_pass(size):
    seen = []

    def may_pass(count):
        seen.append(count)
        return sum(seen) <= size // 2

    async def main(j):
        def pour():
            try:
                j.client.sendall(bytes(size))
            except OSError:
                pass

        pouring = asyncio.create_task(j.call(pour))

        def drain():
            try:
                return len(receive(j.upstream, size))
            except ConnectionResetError:
                return 0

        assert await j.call(drain) <= size // 2
        await asyncio.wait_for(j.done, 10)
        await pouring

    run(main, up=may_pass)


def test_abort_is_once_and_closes_everything():
    async def main(j):
        j.splice.abort()
        j.splice.abort()
        await asyncio.wait_for(j.done, 10)
        with pytest.raises(ConnectionResetError):
            j.client.recv(1)

    run(main)


def pipe_bytes(direction):
    return fcntl.fcntl(direction._pipe[0], fcntl.F_GETPIPE_SZ) if direction._pipe else 0


@pytest.mark.parametrize(("taken", "counted"), [(0, False), (_WIDE_PIPES, False), (0, True)])
def test_wide_pipes_are_few_and_given_back(monkeypatch, taken, counted):
    """A budget is asked for at most a narrow pipe's worth at a time: it cuts no earlier for a wide one."""
    monkeypatch.setattr(_Wide, "count", taken)
    seen = []

    async def main(j):
        sending = asyncio.create_task(j.call(j.client.sendall, bytes(4 << 20)))
        assert len(await j.call(receive, j.upstream, 4 << 20)) == 4 << 20
        await sending
        wide = not taken and not counted
        assert pipe_bytes(j.splice.up) == (_WIDE_BYTES if wide else _PIPE_BYTES)
        assert _Wide.count == taken + wide
        assert all(size <= _PIPE_BYTES for size in seen)

    run(main, **({"up": lambda count: seen.append(count) or True} if counted else {}))
    assert _Wide.count == taken
