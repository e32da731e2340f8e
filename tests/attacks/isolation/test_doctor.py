"""doctor on hosts that lack something: the lack is made with the kernel's own means, in a child."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from saggar.isolation import probe_host
from saggar.isolation import syscalls_host as sc

SRC = os.path.abspath(os.path.join(os.path.dirname(probe_host.__file__), "..", ".."))

# a container engine's default refuses unshare and setns, and clone with namespace flags, with EPERM
CONTAINER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from saggar.isolation import seccomp, probe_host
rows = [seccomp.Refusal(r.call, 1, r.reason, r.tests) for r in seccomp.REFUSALS if r.call in ("unshare", "clone", "mount")]
probe_host.load_filter(seccomp._build(os.uname().machine, rows))
from saggar.cli.doctor import main
sys.exit(main(["doctor", "--json"]))
"""


def doctor(code: str) -> tuple[int, dict]:
    done = subprocess.run([sys.executable, "-c", code, SRC], capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_here(bwrap: str) -> None:
    code, report = doctor(
        "import sys; sys.path.insert(0, sys.argv[1]); from saggar.cli.doctor import main; sys.exit(main(['doctor', '--json']))"
    )
    assert (code, report["works"]) == (0, True), report
    found = {f["name"]: f for f in report["findings"]}
    assert found["a cell"]["status"] == "ok"
    assert found["tier microvm (KVM)"]["status"] == "not probed"
    for finding in found.values():
        if finding["status"] in ("missing", "weaker"):
            assert finding["cause"], finding


def test_under_a_container_engines_filter() -> None:
    code, report = doctor(CONTAINER)
    assert (code, report["works"]) == (4, False)
    found = {f["name"]: f for f in report["findings"]}
    assert found["user namespaces"]["status"] == "missing"
    assert "refuses new namespaces" in found["user namespaces"]["cause"]
    assert "seccomp=unconfined" in found["user namespaces"]["remedy"]
    assert found["own network with every address"]["status"] == "not probed"
    assert "a cell" not in found


def test_no_user_namespaces_left(bwrap: str) -> None:
    """`user.max_user_namespaces` is per user namespace: in one of our own it can be 0."""

    def act() -> list[str]:
        probe = probe_host.Probe()
        probe._enter(0)
        try:
            with open("/proc/sys/user/max_user_namespaces", "wb", buffering=0) as file:
                file.write(b"0")
        except OSError:
            return []
        probe = probe_host.Probe()
        probe._root = False
        found = probe._user_namespace()
        return [found.status, found.cause, found.remedy]

    answer = probe_host.attempt(act)
    if not answer:
        pytest.skip("this kernel does not let a user namespace lower its own limits")
    status, cause, remedy = answer
    assert status == "missing"
    assert "user.max_user_namespaces" in cause
    assert "sysctl -w user.max_user_namespaces" in remedy


def test_a_probe_that_hangs_has_a_deadline(monkeypatch) -> None:
    monkeypatch.setattr(probe_host, "_PROBE_S", 0.2)
    with pytest.raises(probe_host.Refused, match="no answer within"):
        probe_host.attempt(lambda: os.read(os.pipe()[0], 1))


def test_a_probe_that_dies_is_a_refusal() -> None:
    with pytest.raises(probe_host.Refused, match="without an answer"):
        probe_host.attempt(lambda: os.kill(os.getpid(), 9))


def test_nothing_is_left_behind(bwrap: str) -> None:
    probe_host.Probe().run()
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    for place in (base, "/var/tmp"):
        if os.path.isdir(place):
            assert not [n for n in os.listdir(place) if n.startswith(".saggar-doctor-")]
    assert sc.capabilities() >= 0


RUN = """
import os, sys
sys.path.insert(0, sys.argv[1])
from saggar.isolation import seccomp, probe_host
rows = [seccomp.Refusal(r.call, 1, r.reason, r.tests) for r in seccomp.REFUSALS if r.call in ("unshare", "clone", "mount")]
probe_host.load_filter(seccomp._build(os.uname().machine, rows))
from saggar.cli.main import main
sys.exit(main(["run", "--workspace", ":none", "--", "echo", "ran"]))
"""


def test_run_refuses_with_the_same_text(tmp_path) -> None:
    env = os.environ | {"SAGGAR_STATE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", RUN, SRC], capture_output=True, text=True, check=False, timeout=60, env=env
    )
    assert done.returncode == 4, done.stderr
    assert "ran" not in done.stdout
    assert "refuses new namespaces" in done.stderr
    assert "remedy:" in done.stderr
    assert "seccomp=unconfined" in done.stderr


def test_run_refuses_a_watchdog_where_the_policy_wants_more(bwrap: str, tmp_path) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text('[limits]\nrequire = "enforced"\n')
    workspace = tmp_path / "w"
    workspace.mkdir()
    env = os.environ | {
        "SAGGAR_STATE_DIR": str(tmp_path / "s"),
        "PYTHONPATH": os.pathsep.join([SRC, os.environ.get("PYTHONPATH", "")]),
    }
    command = [
        sys.executable,
        "-m",
        "saggar",
        "run",
        "--policy",
        str(policy),
        "--workspace",
        f"{workspace}:read-write",
        "--",
        "echo",
        "ran",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert "can only be watched here" in done.stderr
    assert "remedy:" in done.stderr
