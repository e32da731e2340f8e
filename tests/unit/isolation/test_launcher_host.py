"""The launcher's own bookkeeping, without a cell."""

import os

from saggar.isolation import wire_host as wire
from saggar.isolation.launcher_host import Launcher


def test_the_descriptors_of_a_message_for_a_cell_that_is_gone_are_closed():
    ours, theirs = wire.pair()
    launcher = Launcher(theirs, os.getpid(), keeps=False)
    read, write = os.pipe()
    wire.send(ours, {"op": "continue", "id": "gone", "foreground": True}, [write])
    os.close(write)
    launcher._receive()
    # end of file: nobody holds the other end any more
    os.set_blocking(read, False)
    assert os.read(read, 1) == b""
    os.close(read)
