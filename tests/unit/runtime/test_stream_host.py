"""Captures: head, tail and true counts, whatever the pieces."""

import os
import socket

from hypothesis import given
from hypothesis import strategies as st

from saggar.runtime.stream_host import Capture, passes_through, unread


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(0, 60))
def test_a_capture_keeps_head_and_tail_and_counts_everything(pieces, keep):
    capture = Capture(keep)
    for piece in pieces:
        capture.add(piece)
    whole, kept = b"".join(pieces), capture.bytes()
    assert capture.total == len(whole)
    if len(whole) <= keep:
        assert kept == whole
    else:
        head, tail = keep - keep // 2, keep // 2
        assert kept == whole[:head] + (whole[len(whole) - tail :] if tail else b"")


def test_only_null_passes_through_of_what_is_no_terminal(tmp_path):
    read, write = os.pipe()
    one, other = socket.socketpair()
    with open(tmp_path / "file", "wb") as file, open("/dev/null", "wb") as null, open("/dev/zero", "rb") as zero:
        assert passes_through(null.fileno())
        for fd in (file.fileno(), zero.fileno(), read, write, one.fileno()):
            assert not passes_through(fd)
    for end in (one, other):
        end.close()
    os.close(read)
    os.close(write)


def test_a_terminal_passes_through():
    master, slave = os.openpty()
    assert passes_through(slave)
    os.close(master)
    os.close(slave)


def test_unread_counts_what_is_in_a_pipe():
    read, write = os.pipe()
    os.write(write, b"abc")
    assert unread(read) == 3
    os.read(read, 2)
    assert unread(read) == 1
    os.close(read)
    os.close(write)
