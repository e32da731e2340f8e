"""`saggar policy learn`: a contained run whose refusals become a proposal, and an agent whose calls do."""

from __future__ import annotations

import os
import subprocess
import sys

from saggar.cli.learn import egress_proposal
from saggar.policy.load import parse

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
MAIN = "import sys; from saggar.cli.main import main; sys.exit(main())"


def saggar(state, cwd, *words):
    env = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": f"{ROOT}/src:{ROOT}/examples",
        "SAGGAR_STATE_DIR": str(state),
        "HOME": os.path.join(str(state), "home"),
    }
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words], env=env, cwd=cwd, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, start_new_session=True, timeout=90,
    )  # fmt: skip


def test_a_contained_run_proposes_the_hosts_that_it_was_refused(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    code = "import socket\nfor h in ('api.allowed.test','cdn.allowed.test'):\n  try: socket.getaddrinfo(h,443)\n  except OSError: pass\nraise SystemExit(7)"
    done = saggar(tmp_path / "state", work, "policy", "learn", "-q", "--", "/usr/bin/python3", "-c", code)
    assert done.returncode == 7, done.stderr
    lines = [x[1:] for x in done.stdout.splitlines() if x.startswith("+") and not x.startswith("+++")]
    hosts = [r.host for r in parse("\n".join(lines), "proposal").egress.allow]
    assert hosts == ["api.allowed.test", "cdn.allowed.test"]


AGENT = """
import agent_tools as a, saggar
with saggar.ToolSession([a.read_notes, a.send_email], capabilities=["read:notes[day=*]", "send:email[to=*@acme.example]"], wait_s=0) as s:
    assert s.call("send_email", to="bob@acme.example", subject="Q3", body="final").done
    assert s.call("send_email", to="eve@else.example", subject="Q3", body="final").status == "denied"
"""


def test_an_agent_proposes_the_smallest_capabilities_and_shows_what_was_refused(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    done = saggar(tmp_path / "state", work, "policy", "learn", "--agent", "--", sys.executable, "-c", AGENT)
    assert done.returncode == 0, done.stderr
    assert "uncontained" in done.stderr
    assert '-  "read:notes[day=*]",' in done.stdout
    assert '+  "send:email[to=\\"bob@acme.example\\", max=1]",' in done.stdout
    assert (
        '# refused (constraint), add it only if it was meant: "send:email[to=\\"eve@else.example\\", max=1]"'
        in done.stdout
    )


def test_what_is_said_wrongly(tmp_path):
    for words in (
        ["policy", "learn", "true"],
        ["policy", "learn", "--"],
        ["policy", "learn", "--agent", "-q", "--", "true"],
    ):
        done = saggar(tmp_path / "state", tmp_path, *words)
        assert done.returncode == 2, done.stdout


def record(reason, effect="deny", **detail):
    return {"layer": "L2", "kind": "egress.decision", "effect": effect, "reason": reason, "detail": detail}


def test_only_what_a_rule_could_lift_is_proposed():
    lines = egress_proposal(
        [
            record("host_not_listed", host="a.test", port=8443),
            record("host_not_listed", host="a.test"),
            record("address_refused", host="evil.test", port=443),
            record("listed", "allow", host="ok.test", port=443),
        ]
    )
    assert [x for x in lines if x.startswith("+host")] == [
        '+host = "a.test"  # refused 2 times; add it only if it was meant'
    ]
    assert "+ports = [8443]" in lines
    assert lines[-1] == "# also refused, not for want of a rule: evil.test (address_refused), 1 times"
    assert egress_proposal([]) == ["# no host was refused"]
