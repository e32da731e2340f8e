"""Messages between our own processes: whole, with their descriptors, however long."""

import os
import socket

import pytest

from saggar.isolation import wire_host as wire


@pytest.fixture
def ends():
    ours, theirs = wire.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("size", [0, 1, 32 * 1024, 5_000_000])
def test_a_message_arrives_whole(ends, size):
    ours, theirs = ends
    wire.send(ours, {"body": b"x" * size, "n": 7})
    message, fds = wire.receive(theirs)
    assert message == {"body": b"x" * size, "n": 7}
    assert fds == []


@pytest.mark.parametrize("size", [1, 200_000])
def test_descriptors_come_in_order_and_close_on_exec(ends, size, tmp_path):
    ours, theirs = ends
    files = [os.open(tmp_path / str(i), os.O_CREAT | os.O_RDWR) for i in range(5)]
    wire.send(ours, {"body": b"x" * size}, files)
    _, fds = wire.receive(theirs)
    assert [os.fstat(f).st_ino for f in fds] == [os.fstat(f).st_ino for f in files]
    assert not any(os.get_inheritable(f) for f in fds)
    for fd in (*files, *fds):
        os.close(fd)


def test_the_end_is_no_message(ends):
    ours, theirs = ends
    ours.close()
    assert wire.receive(theirs) == (None, [])


def test_nothing_waiting_is_said_without_waiting(ends):
    with pytest.raises(BlockingIOError):
        wire.receive(ends[1], socket.MSG_DONTWAIT)


def test_a_reader_that_left_is_an_error_and_no_signal(ends):
    ours, theirs = ends
    theirs.close()
    with pytest.raises(BrokenPipeError):
        wire.send(ours, {"op": "kill"})
