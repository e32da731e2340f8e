"""A terminal through `saggar run`: job control by a real shell on a real pty."""

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from pathlib import Path

import pytest

SRC = str(Path(__file__).resolve().parents[2] / "src")
BASH = "/bin/bash"

pytestmark = pytest.mark.skipif(not os.path.exists(BASH), reason="no bash on this host")


def states(mark):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            # the command itself: launcher and supervisor have these words among theirs
            if Path("/proc", pid, "cmdline").read_bytes().startswith(b"sh\0-c\0" + mark):
                found.append(Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0])
        except OSError:
            continue
    return found


class Shell:
    """An interactive bash on a pty of its own. Waits are for text, never for time."""

    def __init__(self, tmp_path):
        work = tmp_path / "work"
        work.mkdir()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "PYTHONPATH": SRC,
            "SAGGAR_STATE_DIR": str(tmp_path / "state"),
            "TERM": "dumb",
            "PS1": "PROMPT> ",
        }
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(work)
            os.execve(BASH, ["bash", "--norc", "--noprofile", "-i"], environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 97, 0, 0))
        self.readable = select.poll()
        self.readable.register(self.fd, select.POLLIN)
        self.wait(b"PROMPT> ")
        self.send(f'saggar() {{ {sys.executable} -m saggar "$@"; }}\n')
        self.wait(b"PROMPT> ")

    def send(self, text):
        os.write(self.fd, text.encode() if isinstance(text, str) else text)

    def wait(self, pattern, timeout=20):
        """Everything up to and with `pattern`; it is consumed."""
        until = time.monotonic() + timeout
        while pattern not in self.seen:
            left = until - time.monotonic()
            if left <= 0 or not self.readable.poll(left * 1000):
                raise AssertionError(f"never saw {pattern!r} in {self.seen!r}")
            try:
                self.seen += os.read(self.fd, 65536)
            except OSError as error:
                raise AssertionError(f"the shell is gone, never saw {pattern!r} in {self.seen!r}") from error
        before, _, self.seen = self.seen.partition(pattern)
        return before + pattern

    def status(self):
        self.send("echo status=$?.\n")
        self.wait(b"status=$?.")
        self.wait(b"status=")
        return int(self.wait(b".").rstrip(b"."))

    def wait_stopped(self, mark):
        """Until the cell's `sh -c` whose script begins with `mark` stands still. A read that waits when the stop arrives may still
        take a byte on its way to it, in any shell's job."""
        until = time.monotonic() + 20
        while any(state not in "TZ" for state in states(mark)):
            assert time.monotonic() < until, states(mark)

    def close(self):
        try:
            os.close(self.fd)
        finally:
            os.waitpid(self.pid, 0)


@pytest.fixture
def shell(tmp_path):
    made = Shell(tmp_path)
    yield made
    made.close()


def test_it_is_a_terminal_with_its_size(shell):
    shell.send("saggar run -- sh -c 'test -t 0 && test -t 1 && test -t 2 && stty size && tty'\n")
    shell.wait(b"33 97\r\n")
    shell.wait(b"PROMPT> ")
    assert shell.status() == 0


def test_ctrl_c_interrupts_the_command_and_not_the_cell(shell):
    shell.send('saggar run -- sh -c \'trap "echo caught; exit 9" INT; echo read""y; while :; do sleep 0.05; done\'\n')
    shell.wait(b"ready\r\n")
    shell.send(b"\x03")
    shell.wait(b"caught\r\n")
    shell.wait(b"PROMPT> ")
    assert shell.status() == 9


def test_ctrl_c_ends_a_command_that_does_not_catch_it(shell):
    shell.send("saggar run -- sh -c 'echo read\"\"y; exec sleep 3220'\n")
    shell.wait(b"ready\r\n")
    shell.send(b"\x03")
    shell.wait(b"PROMPT> ")
    assert shell.status() == 130


def test_ctrl_backslash_reaches_the_command(shell):
    shell.send('saggar run -- sh -c \'trap "echo quit; exit 8" QUIT; echo read""y; while :; do sleep 0.05; done\'\n')
    shell.wait(b"ready\r\n")
    shell.send(b"\x1c")
    shell.wait(b"quit\r\n")
    shell.wait(b"PROMPT> ")
    assert shell.status() == 8


def test_ctrl_z_stops_and_fg_goes_on(shell):
    shell.send('saggar run -- sh -c \'echo read""y; read a; echo "got $a"; exit 6\'\n')
    shell.wait(b"ready\r\n")
    shell.send(b"\x1a")
    shell.wait(b"Stopped")
    shell.wait(b"PROMPT> ")
    shell.wait_stopped(b'echo read""y; read a; echo "got $a"; exit 6')
    shell.send("echo shell-is-back\n")
    shell.wait(b"\nshell-is-back\r\n")
    shell.send("fg\n")
    shell.wait(b"-m saggar")
    shell.send("word\n")
    shell.wait(b"got word\r\n")
    shell.wait(b"PROMPT> ")
    assert shell.status() == 6


def test_bg_goes_on_and_reading_stops_it(shell):
    shell.send('saggar run -- sh -c \'echo read""y; read a; echo "got $a"; exit 6\'\n')
    shell.wait(b"ready\r\n")
    shell.send(b"\x1a")
    shell.wait(b"Stopped")
    shell.send("bg\n")
    shell.wait(b"&\r\n")
    shell.send("jobs; echo asked\n")
    shell.wait(b"\nasked\r\n")
    shell.send("fg\n")
    shell.wait(b"-m saggar")
    shell.send("word\n")
    shell.wait(b"got word\r\n")


def test_a_shell_inside_has_job_control(shell):
    shell.send("saggar run --env PS1='INN''ER> ' -- bash --norc --noprofile -i\n")
    assert b"no job control" not in shell.wait(b"INNER> ")
    # no shell as the job: dash starts programs by vfork, and a stop between vfork and exec leaves dash itself running
    job = 'import os, signal as s; s.signal(s.SIGCONT, lambda *_: os.write(1, b"resumed\\n")); os.write(1, b"rea" + b"dy\\n")'
    shell.send(f"python3 -c '{job}\nwhile True: s.pause()'\n")
    shell.wait(b"ready\r\n")
    shell.send(b"\x1a")
    shell.wait(b"Stopped")
    shell.wait(b"INNER> ")
    shell.send("fg\n")
    shell.wait(b"resumed\r\n")
    shell.send(b"\x03")
    shell.wait(b"INNER> ")
    shell.send("exit 5\n")
    shell.wait(b"PROMPT> ")
    assert shell.status() == 5
    shell.send("echo still-here\n")
    shell.wait(b"\nstill-here\r\n")


def test_window_size_changes_arrive(shell):
    script = "trap 'stty size; exit 0' WINCH; echo read\"\"y; while :; do sleep 0.05; done"
    shell.send(f"saggar run -- sh -c '{script.replace(chr(39), chr(34))}'\n".replace('read""y', "read''y"))
    shell.wait(b"ready\r\n")
    fcntl.ioctl(shell.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 111, 0, 0))
    shell.wait(b"44 111\r\n")


def test_a_pipeline_keeps_its_pager(shell):
    shell.send("saggar run -- sh -c 'echo one; echo two' | cat -n\n")
    shell.wait(b"1\tone\r\n")
    shell.wait(b"2\ttwo\r\n")
    shell.wait(b"PROMPT> ")
    assert shell.status() == 0


def test_the_group_of_the_caller_is_out_of_reach(shell):
    # kill(0, …) inside means the cell's own group: the script around it goes on
    shell.send(
        "bash -c '{ saggar() { "
        + sys.executable
        + ' -m saggar "$@"; }; saggar run -- sh -c "kill -KILL 0"; echo alive; }\'\n'
    )
    shell.wait(b"alive\r\n")


def test_a_group_that_killed_itself_is_no_command_that_did_not_run(shell):
    shell.send("saggar run -- sh -c 'echo did; kill -KILL 0; sleep 9'\n")
    shell.wait(b"did\r\n")
    said = shell.wait(b"PROMPT> ")
    # the keeper is of the group, so the launcher ends the cell; unless pid 1 has told the command's end before that
    told = b"ended by signal 9, from within or from outside; the command had started" in said
    assert (shell.status(), told) in {(70, True), (137, False)}


def test_characters_cannot_be_pushed_into_the_terminal(shell):
    script = (
        'import fcntl,sys,termios\\ntry: fcntl.ioctl(0, 0x5412, b"x")\\nexcept OSError as e: print("errno", e.errno)'
    )
    shell.send(f"saggar run -- python3 -c $'{script}'\n")
    shell.wait(b"errno 1\r\n")
