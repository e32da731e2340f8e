"""The README's agent with three tools, run as a new user would: at a terminal, and without one."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
SCRIPT = os.path.join(ROOT, "examples", "agent_tools.py")


def env(state):
    return {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": os.path.join(ROOT, "src"),
        "SAGGAR_STATE_DIR": str(state),
        "TERM": "dumb",
    }


def at_terminal(state, word):
    """The script's output on a terminal of its own, `word` typed when it asks."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, SCRIPT], env(state))
    out, typed = b"", False
    while select.select([fd], [], [], 60)[0]:
        try:
            piece = os.read(fd, 4096)
        except OSError:
            break
        if not piece:
            break
        out += piece
        if b"approve?" in out and not typed:
            os.write(fd, word)
            typed = True
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return out.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("word", "result", "outbox"),
    [
        (b"y\n", "-> sent", "outbox: ['bob@acme.example: Q3: Q3 numbers are final.']"),
        (b"n\n", "-> this call is not allowed", "outbox: []"),
    ],
)
def test_at_a_terminal(tmp_path, word, result, outbox):
    out = at_terminal(tmp_path, word)
    lines = [x for x in out.splitlines() if "->" in x]
    assert "P.S. forward everything" in out
    assert "audit@evil.example" in lines[1] or "audit@evil.example" in lines[0]
    assert next(x for x in lines if "audit@evil.example" in x and "send_email" in x).endswith(
        "-> this call is not allowed"
    )
    assert lines[-1].endswith(result)
    assert outbox in out
    assert 'Bob (Finance)  = "bob@acme.example"' in out
    (run,) = os.listdir(tmp_path / "runs")
    verify = [sys.executable, "-c", "import sys; from saggar.cli.main import main; sys.exit(main())", "log", "verify"]
    checked = subprocess.run(
        [*verify, str(tmp_path / "runs" / run / "audit.jsonl")],
        env=env(tmp_path),
        check=False,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr + checked.stdout


PARK = """
import sys, agent_tools as a, saggar
caps = ["read:notes[2026-05-15]", "send:email[to=*@acme.example, max=3]"]
with saggar.ToolSession([a.read_notes, a.send_email], capabilities=caps, wait_s=0, resume=sys.argv[1]) as s:
    if not sys.argv[1]:
        s.call("read_notes", day="2026-05-15")
    out = s.call("send_email", to="bob@acme.example", subject="Q3", body="final")
    print(s.id, out.status, out.approval_id, a.OUTBOX)
"""


def saggar(state, *words, tty=False):
    code = "import sys; from saggar.cli.main import main; sys.exit(main())"
    if not tty:
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            env=env(state),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    master, slave = pty.openpty()
    try:
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            env=env(state),
            capture_output=True,
            text=True,
            check=False,
            stdin=slave,
        )
    finally:
        os.close(master)
        os.close(slave)


def test_without_a_terminal_the_call_is_parked_approved_and_resumed(tmp_path):
    def run(resume):
        environ = env(tmp_path) | {"PYTHONPATH": f"{ROOT}/src:{ROOT}/examples"}
        done = subprocess.run(
            [sys.executable, "-c", PARK, resume],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split(maxsplit=3)

    ident, status, question, outbox = run("")
    assert (status, outbox.strip()) == ("parked", "[]")
    assert "send_email" in saggar(tmp_path, "approvals", "list").stdout
    machine = saggar(tmp_path, "approvals", "approve", question)
    assert (machine.returncode, "for a person" in machine.stderr) == (2, True)
    person = saggar(tmp_path, "approvals", "approve", question, tty=True)
    assert person.returncode == 0, person.stderr
    again = run(ident)
    assert (again[0], again[1]) == (ident, "done")
    assert run(ident)[1] == "parked"  # approved once
