"""What a secret's command may run: nothing that the sandbox could have written."""

import pytest

from saggar.core.errors import UsageError
from saggar.runtime.terminate_host import _outside


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
