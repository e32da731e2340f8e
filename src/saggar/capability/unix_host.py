"""Unix sockets at paths of any length: a socket's address holds 107 bytes, a state directory's path may be longer.

The kernel resolves `/proc/self/fd/N/name` through an open descriptor of the directory, whatever its path.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST = 100


@contextmanager
def reachable(path: str) -> Iterator[str]:
    """A short way to `path` while the context lasts. Raises `OSError` where its directory cannot be opened."""
    if len(os.fsencode(path)) <= _LONGEST:
        yield path
        return
    fd = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{os.path.basename(path)}"
    finally:
        os.close(fd)


def listen(path: str, backlog: int) -> socket.socket:
    """A listener at `path`, mode 0600; what a dead process left there is replaced. Raises `OSError`."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(path) as way:
            try:
                os.unlink(way)
            except FileNotFoundError:
                pass
            # bind gives the file the socket's own mode: between a bind and a chmod anyone could connect
            os.fchmod(found.fileno(), 0o600)
            found.bind(way)
        found.listen(backlog)
    except OSError:
        found.close()
        raise
    return found


def connect(path: str) -> socket.socket:
    """Raises `OSError`."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(path) as way:
            found.connect(way)
    except OSError:
        found.close()
        raise
    return found
