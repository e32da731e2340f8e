"""A session that dies between intent and outcome: the log says so, and the same call does not run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
PROGRAM = """
import os, signal, sys
import saggar

@saggar.tool("send:email", effect="egress", roles={"to": "recipient", "body": "content"},
             labels={"*": saggar.FieldLabel(integrity="system", readers="*", private=False)})
def send_email(to: str, body: str) -> str:
    with open(sys.argv[2], "a") as f:
        f.write(to + chr(10))
    if body == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return "sent"

with saggar.ToolSession([send_email], capabilities=["send:email[to=*@acme.com, max=2]"], wait_s=0, resume=sys.argv[1]) as s:
    print(s.id, flush=True)
    for ident, body in (("step-1", "die" if not sys.argv[1] else "again"), ("step-2", "x"), ("step-3", "y")):
        out = s.gateway.call(s.token(), "send_email", {"to": "bob@acme.com", "body": body}, call_id=ident)
        print(ident, out.status, out.decision.reason)
"""


def test_a_call_whose_end_nobody_saw(tmp_path):
    sent = tmp_path / "sent.txt"
    env = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": f"{ROOT}/src", "SAGGAR_STATE_DIR": str(tmp_path / "state")}
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(*words):
        return subprocess.run(
            [sys.executable, *words], env=env, capture_output=True, text=True, check=False, timeout=60,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    died = run(str(program), "", str(sent))
    assert died.returncode == -signal.SIGKILL, died.stderr
    ident = died.stdout.strip()
    assert sent.read_text() == "bob@acme.com\n"  # the effect did happen

    main = ("-c", "import sys; from saggar.cli.main import main; sys.exit(main())")
    shown = run(*main, "audit", "overprovision", ident)
    assert "calls whose end nobody saw: step-1" in shown.stdout, shown.stderr
    log = tmp_path / "state" / "runs" / ident / "audit.jsonl"
    assert json.loads(log.read_text().splitlines()[-1])["kind"] == "capability.intent"

    again = run(str(program), ident, str(sent))
    # the spent id is refused, and its use of the budget counts: one more of two, not two
    assert again.stdout.splitlines()[1:] == [
        "step-1 denied replayed", "step-2 done rule_allow", "step-3 denied budget_calls",
    ], again.stderr  # fmt: skip
    assert sent.read_text() == "bob@acme.com\n" * 2
    assert run(*main, "log", "verify", str(log)).returncode == 0
