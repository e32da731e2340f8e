import os
import select
import signal
import subprocess

from saggar.isolation.launched_cell_host import LaunchedCell


def test_a_signal_for_a_command_that_was_heard_of_only_now():
    """The command has spoken, and the launcher has not read yet that bubblewrap has made it: the signal is the command's, and ends no cell."""
    polled = select.poll()
    read, write = os.pipe()
    os.set_blocking(read, False)
    polled.register(read, select.POLLIN)
    init = subprocess.Popen(["sh", "-c", "sleep 60 & echo up; wait $!; exit $?"], stdout=subprocess.PIPE)
    try:
        assert init.stdout.readline() == b"up\n"
        cell = LaunchedCell("r", init.pid, read, None, float("inf"), polled)
        cell.init, cell.init_fd = init.pid, os.pidfd_open(init.pid)
        os.write(write, b'{ "child-pid": 12 }\n')
        cell.signal(signal.SIGUSR1)
        assert cell.cause == ""
        assert init.wait(20) == 128 + signal.SIGUSR1
    finally:
        init.kill()
        init.stdout.close()
        init.wait()
        for fd in (read, write, cell.init_fd):
            os.close(fd)
