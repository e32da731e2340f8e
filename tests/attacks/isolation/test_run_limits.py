"""Exhaustion through the real `saggar run`: each attack ends with a typed cause, in the result and on the audit record."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

SRC = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..", "src"))
PYTHON = shutil.which("python3", path="/usr/bin:/bin")
MIB = 1 << 20

POLICY = """
[limits]
memory = "200MiB"
tasks = 64
disk = "%s"
timeout = "%s"
"""


@pytest.fixture
def saggar(bwrap: str, tmp_path):
    """`saggar(argv, disk=…)` → (result, audit records)."""
    workspace = tmp_path / "work"
    workspace.mkdir()
    policy = tmp_path / "saggar.toml"
    out = tmp_path / "out.json"
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SAGGAR_STATE_DIR": str(tmp_path / "state"),
        "PYTHONPATH": os.pathsep.join([SRC, *(p for p in sys.path if p.endswith("site-packages"))]),
    }

    def run(
        argv: list[str],
        *,
        disk: str = "2GiB",
        timeout: str = "40s",
        mode: str = "copy-on-write",
        stdin: str = "",
        start=("-m", "saggar"),
    ):
        policy.write_text(POLICY % (disk, timeout))
        command = [
            sys.executable,
            *start,
            "run",
            "--policy",
            str(policy),
            "--json",
            str(out),
            "--workspace",
            f"{workspace}:{mode}",
            "--",
            *argv,
        ]
        run.done = subprocess.run(
            command, env=env, cwd=workspace, input=stdin, text=True, capture_output=True, timeout=100, check=False
        )
        result = json.loads(out.read_text())
        with open(result["audit_path"]) as file:
            return result, [json.loads(line) for line in file]

    return run


MEMORY = {
    "anonymous": "x = bytearray(400 << 20); x[::4096] = b'x' * (400 * 256)",
    "shared": "import mmap\nm = mmap.mmap(-1, 400 << 20)\nfor i in range(0, 400 << 20, 4096): m[i] = 1",
    "memfd": "import os\nf = os.memfd_create('x')\nfor _ in range(400): os.write(f, b'x' * (1 << 20))",
    "forks": "import os\nfor _ in range(5): os.fork()\nx = bytearray(9 << 20); x[::4096] = b'x' * (9 * 256)",
}


def ended_by(result, records, limit: str) -> None:
    assert result["cause"] == limit, result
    assert result["limits"][limit]["held"] in ("enforced", "watchdog")
    end = next(r for r in records if r["kind"] == "run.end")
    assert end["reason"] == limit
    assert end["detail"]["limit"] == limit


@pytest.mark.parametrize("hog", MEMORY)
def test_memory(saggar, hog: str) -> None:
    result, records = saggar([PYTHON, "-I", "-c", MEMORY[hog] + "\nimport time; time.sleep(30)"])
    ended_by(result, records, "memory")
    assert result["duration_s"] < 20


#: `saggar` on a host where memory can only be watched
WATCHED = """
import sys
from saggar.isolation import cgroups_host
cgroups_host.places = lambda names: {n: cgroups_host.Place(0, "", "taken away by the test") for n in names}
from saggar.cli.main import main
sys.exit(main())
"""
MAPPED = (
    "import mmap, time\nm = mmap.mmap(-1, 780 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)\ntime.sleep(0.4)\n"
)


@pytest.mark.parametrize(
    ("end", "cause", "code", "status"),
    [("raise SystemExit(3)", "exit", 3, 3), ("import os; os.abort()", "signal", None, 134), ("", "exit", 0, 0)],
)
def test_a_command_that_mapped_much_keeps_its_own_end(
    saggar, end: str, cause: str, code: int | None, status: int
) -> None:
    """A failure of its own is not the memory limit's, though it may be: the suspicion stands beside it."""
    result, records = saggar([PYTHON, "-I", "-c", MAPPED + end], start=["-c", WATCHED])
    assert (result["cause"], result["exit_code"], saggar.done.returncode) == (cause, code, status)
    record = next(r for r in records if r["kind"] == "run.end")
    assert record["reason"] == cause
    for detail in (result["detail"], record["detail"]):
        assert detail.get("suspected", {}).get("limit") == ("memory" if status else None)
    assert ("perhaps at the memory limit" in saggar.done.stderr) == bool(status)


def test_a_fork_bomb(saggar) -> None:
    result, records = saggar(["bash", "-c", ":(){ :|:& };:; sleep 60"])
    ended_by(result, records, "tasks")


@pytest.mark.parametrize(
    "code",
    [
        "import os\nfor n in range(20):\n    f = open(f'f{n}', 'wb')\n    for _ in range(10): f.write(os.urandom(1 << 20))",
        "for n in range(40000): open(f'f{n}', 'w').close()",
    ],
    ids=["bytes", "inodes"],
)
@pytest.mark.parametrize("mode", ["copy-on-write", "read-write"])
def test_disk_in_the_workspace(saggar, code: str, mode: str) -> None:
    result, records = saggar([PYTHON, "-I", "-c", code + "\nimport time; time.sleep(30)"], disk="64MiB", mode=mode)
    ended_by(result, records, "disk")


def test_a_read_write_workspace_may_be_large_before(saggar, tmp_path) -> None:
    (tmp_path / "work").mkdir(exist_ok=True)
    (tmp_path / "work" / "old").write_bytes(os.urandom(100 << 20))
    code = "import time\nopen('new', 'w').write('x')\ntime.sleep(0.5)"
    result, _ = saggar([PYTHON, "-I", "-c", code], disk="64MiB", mode="read-write")
    assert (result["cause"], result["exit_code"]) == ("exit", 0)


def test_disk_in_scratch(saggar) -> None:
    result, records = saggar(["dd", "if=/dev/zero", "of=/tmp/x", "bs=1M", "count=500"], disk="64MiB")
    ended_by(result, records, "disk")


CHANGE = """
import glob, json, os
top = "/sys/fs/cgroup"
tried = {}
def attempt(name, function):
    try:
        function()
        tried[name] = "done"
    except OSError as error:
        tried[name] = error.strerror
def write(path, text):
    with open(path, "w") as file:
        file.write(text)
for path in [p for d, _, names in os.walk(top) for p in (d + "/" + n for n in names)]:
    attempt("write " + path, lambda: write(path, "-1"))
for path in [d for d, _, _ in os.walk(top)]:
    attempt("mkdir in " + path, lambda: os.mkdir(path + "/x"))
pids = {p for n in glob.glob(top + "/**/cgroup.procs", recursive=True) for p in open(n).read().split()}
print(json.dumps({"tried": tried, "strangers": sorted(pids - set(os.listdir("/proc")))}))
"""


def test_the_cells_view_of_its_groups_changes_nothing(saggar) -> None:
    result, _ = saggar(["sh", "-c", f"{PYTHON} -I - > found"], stdin=CHANGE)
    layer = os.path.join(os.path.dirname(result["audit_path"]), "layer", "upper", "found")
    with open(layer) as file:
        found = json.load(file)
    assert found["strangers"] == []
    assert set(found["tried"].values()) <= {"Read-only file system", "Permission denied"}
    if result["limits"]["memory"]["held"] == "enforced":
        assert any(name.startswith("write") and "memory" in name for name in found["tried"])


def test_time(saggar) -> None:
    start = time.monotonic()
    result, _ = saggar(["sh", "-c", "setsid sleep 100 & sleep 100"], timeout="1s")
    assert result["cause"] == "timeout"
    assert time.monotonic() - start < 10


def test_nothing_is_left(saggar) -> None:
    from saggar.isolation import cgroups_host

    result, _ = saggar([PYTHON, "-I", "-c", "import os\nfor _ in range(20): os.fork()"])
    for place in cgroups_host.places(("memory", "pids", "cpu")).values():
        if place.parent:
            assert not os.path.exists(f"{place.parent}/saggar-{result['run_id']}")
