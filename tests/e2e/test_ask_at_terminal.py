"""A rule's question at the terminal of `saggar run`: a real pty, whose other side is the command's as well."""

import json
import os
import pty
import select
import signal
import sys
import termios
import time
from pathlib import Path

import pytest

from saggar.testing.upstream import Upstream

SRC = str(Path(__file__).resolve().parents[2] / "src")
POLICY = """[[egress.allow]]
host = "api.allowed.test"
id = "api"
ports = [80]
connect_to = "127.0.0.1:{port}"
[egress.allow.http]
rules = [{{ effect = "ask", methods = ["DELETE"], paths = ["/v1/jobs/*"] }}, {{ methods = ["GET"] }}]
"""
ASKED = b", [n]o, [later]: "

#: DELETE of each path given, one after the other, after the words that a hostile program writes
CLIENT = r"""
import http.client, sys, threading
def ask(path):
    c = http.client.HTTPConnection("api.allowed.test", timeout=60)
    c.request("DELETE", path)
    r = c.getresponse()
    print("<" + path[-1], r.status, r.headers.get("X-Saggar-Reason"), end=">\n", flush=True)
"""
IN_TURN = CLIENT + "for path in sys.argv[1:]: ask(path)\n"
AT_ONCE = CLIENT + (
    "ts = [threading.Thread(target=ask, args=(p,)) for p in sys.argv[1:]]\n[t.start() for t in ts]\n[t.join() for t in ts]\n"
)
#: never stops writing, from a session of its own, and reads what it can
NOISE = r"""
import os, sys, threading, time
tty = os.open("/dev/tty", os.O_RDWR) if os.path.exists("/dev/tty") else 1
if not os.fork():
    os.setpgid(0, 0)
    import signal; signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    while True:
        os.write(1, b"~"); time.sleep(0.001)
"""


class Screen:
    """`saggar run` as the leader of a session on a pty of its own."""

    def __init__(self, place, workspace, policy, code, *paths, term="xterm"):
        env = {
            "PATH": os.environ["PATH"], "HOME": place, "PYTHONPATH": SRC, "SAGGAR_STATE_DIR": f"{place}/state", "TERM": term,
        }  # fmt: skip
        self.seen = b""
        self.state = f"{place}/state"
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(workspace)
            os.execve(
                sys.executable,
                [
                    sys.executable,
                    "-m",
                    "saggar",
                    "run",
                    "--policy",
                    policy,
                    "--",
                    "/usr/bin/python3",
                    "-c",
                    code,
                    *paths,
                ],
                env,
            )
        self.readable = select.poll()
        self.readable.register(self.fd, select.POLLIN)

    def wait(self, pattern, timeout=30):
        until = time.monotonic() + timeout
        while pattern not in self.seen:
            left = until - time.monotonic()
            if left <= 0 or not self.readable.poll(left * 1000):
                raise AssertionError(f"never saw {pattern!r} in {self.seen!r}")
            try:
                self.seen += os.read(self.fd, 65536)
            except OSError as error:
                raise AssertionError(f"over, never saw {pattern!r} in {self.seen!r}") from error
        before, _, self.seen = self.seen.partition(pattern)
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def quiet(self, seconds):
        """What comes within `seconds`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.readable.poll(left * 1000):
                self.seen += os.read(self.fd, 65536)
        return self.seen

    def end(self):
        rest = b""
        while True:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                break
            if not data:
                break
            rest += data
        os.close(self.fd)
        return rest, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def records(self, kind):
        (log,) = Path(self.state, "runs").glob("*/audit.jsonl")
        return [r for r in map(json.loads, log.read_text().splitlines()) if r["kind"] == kind]


@pytest.fixture
def upstream():
    with Upstream() as made:
        yield made


@pytest.fixture
def screen(place, workspace, upstream):
    policy = Path(place, "policy.toml")
    policy.write_text(POLICY.format(port=upstream.port))
    return lambda code, *paths, **more: Screen(place, workspace, str(policy), code, *paths, **more)


def test_each_answer(screen, upstream):
    s = screen(IN_TURN, *(f"/v1/jobs/{n}" for n in (1, 2, 2, 3, 4, 5)))
    card = s.wait(ASKED)
    assert b"What follows was chosen by the sandbox:\r\n  | method DELETE\r\n  | host   api.allowed.test:80\r\n" in card
    assert b"[p]attern for all of /v1/jobs/*" in card
    s.type("maybe\n")
    s.wait(ASKED)
    s.type("once\n")
    s.wait(b"<1 200 None>")
    s.wait(ASKED)
    s.type("t\n")
    s.wait(b"held[0]")
    s.wait(b"<2 200 None>")
    s.wait(b"<2 200 None>")
    s.wait(ASKED)
    s.type("n\n")
    s.wait(b"<3 403 approval_denied>")
    s.wait(ASKED)
    s.type("d\n")
    assert b'+rules = [{ effect = "approve", methods = ["DELETE"], paths = ["/v1/jobs/4"] }, {' in s.wait(
        b"<4 200 None>"
    )
    s.wait(ASKED)
    s.type("p\n")
    s.wait(b"<5 200 None>")
    assert s.end()[1] == 0
    assert [r["reason"] for r in s.records("approval.answer")] == [
        "approved", "approved", "denied", "approved", "approved",
    ]  # fmt: skip
    assert {r["detail"]["by"] for r in s.records("approval.answer")} == {"the terminal"}
    assert upstream.bytes.count(b"DELETE") == 5


def test_several_are_asked_one_after_the_other(screen):
    s = screen(AT_ONCE, *(f"/v1/jobs/{n}" for n in (1, 2, 3)))
    for _ in range(3):
        s.wait(ASKED)
        s.type("o\n")
    assert s.end()[0].count(b" 200 None>") + s.seen.count(b" 200 None>") == 3
    assert len(s.records("approval.answer")) == 3


def test_an_interrupt_is_a_no_and_goes_on_to_the_command(screen, upstream):
    s = screen(AT_ONCE, "/v1/jobs/1", "/v1/jobs/2")
    s.wait(ASKED)
    s.type("\x03")
    _, code = s.end()
    assert code == 130
    assert b"DELETE" not in upstream.bytes
    answers = s.records("approval.answer")
    assert {(r["reason"], r["detail"]["by"]) for r in answers} == {("denied", "an interrupt")}


def test_nothing_of_the_sandbox_stands_beside_the_question(screen):
    s = screen(NOISE + IN_TURN, "/v1/jobs/1")
    s.wait(b"What follows was chosen")
    s.wait(ASKED)
    assert s.quiet(1.0) == b""
    s.type("o\n")
    # it runs again, all of it
    s.wait(b"~")
    s.wait(b"<1 200 None>")
    s.end()


def test_what_was_typed_before_is_no_answer(screen, upstream):
    s = screen("import sys; print('ready', flush=True); sys.stdin.readline()\n" + IN_TURN, "/v1/jobs/1")
    s.wait(b"ready")
    s.type("go\no\no\no\n")
    s.wait(ASKED)
    assert s.quiet(0.5) == b""
    s.type("n\n")
    s.wait(b"<1 403 approval_denied>")
    s.end()
    assert b"DELETE" not in upstream.bytes


def test_the_terminal_is_as_it_was(screen):
    """A program in raw mode is asked about in a plain one, and gets its own back."""
    code = (
        "import termios, tty\ntty.setraw(0)\nbefore = termios.tcgetattr(0)\n"
        + IN_TURN
        + "print('same', termios.tcgetattr(0) == before, flush=True)\nsys.stdin.read(1)\nprint('read', flush=True)\n"
    )
    s = screen(code, "/v1/jobs/1")
    s.wait(ASKED)
    mode = termios.tcgetattr(s.fd)
    assert mode[3] & termios.ICANON
    s.type("o\n")
    s.wait(b"same True")
    s.type("x")
    s.wait(b"read")
    s.end()


def test_escapes_in_what_the_sandbox_chose_are_shown(screen):
    code = IN_TURN.replace('request("DELETE", path)', 'putrequest("DELETE", path); c.endheaders()')
    s = screen(code, "/v1/jobs/1?q=%1B[2J" + "x" * 600)
    card = s.wait(ASKED).partition(b"What follows")[2]
    assert b"\x1b" not in card
    assert b" characters, sha256 " in card
    s.type("n\n")
    s.end()


def test_later_leaves_it_to_the_other_command(screen):
    s = screen(IN_TURN, "/v1/jobs/1")
    s.wait(ASKED)
    s.type("later\n")
    s.wait(b"saggar egress approve r")
    number = "r" + s.wait(b"`").decode()
    import subprocess

    env = {"PATH": os.environ["PATH"], "HOME": "/", "PYTHONPATH": SRC, "SAGGAR_STATE_DIR": s.state}
    done = subprocess.run(
        [sys.executable, "-m", "saggar", "egress", "approve", number],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    s.wait(b"<1 200 None>")
    s.end()


def test_killed_at_a_question(screen, upstream):
    s = screen(IN_TURN, "/v1/jobs/1")
    s.wait(ASKED)
    os.kill(s.pid, signal.SIGTERM)
    s.end()
    assert b"DELETE" not in upstream.bytes
