"""Twin of capability.unix_host: sockets at long paths, private from their first moment."""

from __future__ import annotations

import os
import stat

import pytest

from saggar.capability.unix_host import connect, listen


@pytest.mark.parametrize("length", [1, 90, 200])
def test_any_length_and_private(tmp_path, length):
    directory = tmp_path / ("d" * length)
    directory.mkdir()
    path = str(directory / "s.sock")
    before = os.umask(0)
    try:
        with listen(path, 1) as server:
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
            with connect(path) as client, server.accept()[0] as peer:
                client.sendall(b"x")
                assert peer.recv(1) == b"x"
        listen(path, 1).close()  # what a dead process left is replaced
    finally:
        os.umask(before)


def test_no_directory_is_an_error(tmp_path):
    for path in (str(tmp_path / "none" / "s"), str(tmp_path / ("n" * 200) / "s")):
        with pytest.raises(OSError):
            listen(path, 1)
        with pytest.raises(OSError):
            connect(path)
