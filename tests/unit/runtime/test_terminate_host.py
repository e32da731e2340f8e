"""What a secret's command may run: nothing that the sandbox could have written."""

import json

import pytest

from saggar.core.errors import UsageError
from saggar.policy.model import EgressPolicy, EgressRule
from saggar.runtime.terminate_host import Terminating, _outside


def spec(source):
    return {"sources": {"value": source}}


@pytest.mark.parametrize("first", ["{ws}/bin", "{ws}", "bin", ".", "", "{link}"])
def test_path_leads_nowhere_into_the_workspace(tmp_path, first):
    """`command:/usr/bin/env mytool` looks along PATH."""
    work = tmp_path / "ws"
    (work / "bin").mkdir(parents=True)
    (tmp_path / "link").symlink_to(work / "bin")
    path = first.format(ws=work, link=tmp_path / "link")
    env = _outside([spec("command:/usr/bin/env mytool")], {"PATH": f"{path}:/usr/bin", "X": "1"}, str(work))
    assert env == {"PATH": "/usr/bin", "X": "1"}
    assert _outside([], {"PATH": path}, str(work))["PATH"] == "/usr/bin:/bin"


def test_a_command_in_the_workspace_is_refused(tmp_path):
    work = tmp_path / "ws"
    (work / "bin").mkdir(parents=True)
    (work / "bin" / "say").write_text("")
    (tmp_path / "say").symlink_to(work / "bin" / "say")
    for program in (work / "bin" / "say", tmp_path / "say"):
        with pytest.raises(UsageError, match="the command of a secret lies in the workspace"):
            _outside([spec(f"command:{program} x")], {}, str(work))
    assert _outside([spec("command:/bin/cat /x"), spec("env:A")], {"PATH": "/bin"}, str(work)) == {"PATH": "/bin"}
    # where all of the machine is the workspace there is no outside, and the supervisor itself lies in it
    assert _outside([spec("command:/bin/cat /x")], {"PATH": "/bin"}, "/")["PATH"] == "/usr/bin:/bin"


def test_the_broker_is_told_the_ports_that_are_left():
    """A terminated rule keeps its compiled terms, and of its ports those of the rules as they are now."""
    made = object.__new__(Terminating)
    made.egress = {"allow": [{"id": "a", "host": "a.test", "ports": [443, 8443], "http": "{}"}], "budget": {}}
    rule = EgressRule(id="a", host="a.test", ports=(443,), http="{}")
    gone = rule.replace(ports=(8443,), enabled=False)
    told = json.loads(made.rules_json(EgressPolicy(allow=(rule, gone))))["egress"]["allow"]
    assert [(r["ports"], r["enabled"]) for r in told] == [([443], True), ([8443], False)]
