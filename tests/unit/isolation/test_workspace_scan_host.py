import os
import shutil
import subprocess
import sys
import tempfile

import pytest

import saggar
from saggar.isolation.workspace_scan_host import MAX_DEPTH, SNAPSHOT, Scan, Snapshot, read_snapshot


def scan_of(path, ids=None):
    fd = os.open(path, os.O_RDONLY)
    try:
        return Scan(fd, ids=ids)
    finally:
        os.close(fd)


def kept(scan, state):
    run = state.new_run()
    scan.write(run.fd)
    return read_snapshot(run.fd), run


def test_a_snapshot_names_what_was_there(state, workspace):
    os.makedirs(f"{workspace}/a/b")
    for name in ("x", "a/y", "a/\udcff odd\n"):
        open(f"{workspace}/{name}", "w").close()
    scan = scan_of(workspace)
    assert scan.run(10)
    assert scan.done
    snapshot, _ = kept(scan, state)
    inode, mtime, mode, names = snapshot.directory(b"a/")
    status = os.stat(f"{workspace}/a")
    assert (inode, mtime, mode) == (status.st_ino, status.st_mtime_ns, status.st_mode & 0o7777)
    assert names == {b"b", b"y", b"\xff odd\n"}
    assert snapshot.directory(b"")[3] == {b"a", b"x"}
    assert snapshot.directory(b"a/b/")[3] == frozenset()
    assert snapshot.directory(b"x/") is None


def test_damaged_snapshots_give_what_is_whole(state, workspace):
    os.makedirs(f"{workspace}/a")
    scan = scan_of(workspace)
    scan.run(10)
    _, run = kept(scan, state)
    data = open(f"{run.path}/{SNAPSHOT}", "rb").read()
    whole = {n for n in (b"", b"a/") if Snapshot(data).directory(n)}
    assert whole == {b"", b"a/"}
    for cut in range(len(data)):
        assert {n for n in whole if Snapshot(data[:cut]).directory(n)} < whole
    for junk in (b"", b"junk", data[:18] + b"9" * 300, data[:18] + b"1 2 3 4\n", data[:18] + b"1 2 3 99999999 9\nx"):
        assert Snapshot(junk).directory(b"") is None


def test_a_budget_ends_the_first_look_and_a_thread_goes_on(state, workspace):
    for i in range(200):
        os.makedirs(f"{workspace}/d{i}/e")
    scan = scan_of(workspace)
    assert not scan.run(-1)
    run = state.new_run()
    scan.run_beside(run.fd)
    scan.finish()
    assert scan.done
    assert read_snapshot(run.fd).directory(b"d199/e/") is not None


def test_a_stopped_scan_leaves_no_snapshot_and_no_descriptor(state, workspace):
    for i in range(200):
        os.makedirs(f"{workspace}/d{i}")
    before = len(os.listdir("/proc/self/fd"))
    scan = scan_of(workspace)
    scan.run(-1)
    scan.finish(wait=False)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not scan.done


def test_deep_trees_are_bounded(workspace):
    fd = os.open(workspace, os.O_RDONLY)
    for _ in range(MAX_DEPTH + 20):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    scan = scan_of(workspace)
    assert scan.run(10)
    assert not scan.whole


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_directories_are_named(workspace):
    os.mkdir(f"{workspace}/closed", 0)
    scan = scan_of(workspace, (os.geteuid(), os.getegid()))
    assert scan.run(10)
    assert [(c.code, c.count, c.paths) for c in scan.caveats()] == [("unreadable", 1, ("closed",))]


STARTING = """
import os, sys
from saggar.isolation.state_host import open_state
from saggar.isolation.workspace_host import CallerIds, prepare
from saggar.policy.model import Policy, WorkspacePolicy

os.environ["SAGGAR_STATE_DIR"] = sys.argv[2]
state = open_state(os.environ)
run = state.new_run()
calls = {}
def count(event, args):
    if event in ("open", "os.scandir", "os.listdir"):
        calls[event] = calls.get(event, 0) + 1
sys.addaudithook(count)
caller = CallerIds(uid=os.geteuid(), gid=os.getegid(), privileged=True)
os.chown = os.fchown = lambda *a, **k: None
workspace = prepare(Policy(workspace=WorkspacePolicy(path=sys.argv[1])), run, state, caller=caller, env={}, cwd="/")
before = dict(calls)
open(f"{run.path}/layer/upper/change", "w").close()
workspace.finish()
copied = sum(os.stat(f"{base}/{n}").st_blocks for base, _, names in os.walk(f"{run.path}/layer") for n in names)
print(before.get("open", 0), calls["open"], copied, os.stat(f"{run.path}/snapshot").st_size)
"""


@pytest.fixture
def large():
    """A tree of 50,000 files, in memory where that can be: making it on a disk takes half a minute."""
    path = tempfile.mkdtemp(prefix="saggar-test-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else "/var/tmp")
    yield path
    shutil.rmtree(path)


def test_a_tree_of_50000_files_starts_without_copying_or_opening_files(state, large):
    """Counted in operations: no file is opened, the start waits for a few directories only, and the layer stays empty."""
    workspace = large
    for d in range(500):
        os.mkdir(f"{workspace}/d{d}")
        for f in range(100):
            os.close(os.open(f"{workspace}/d{d}/f{f}", os.O_CREAT | os.O_WRONLY, 0o644))
    done = subprocess.run(
        [sys.executable, "-c", STARTING, workspace, f"{state.path}2"],
        env={"PYTHONPATH": os.path.dirname(os.path.dirname(saggar.__file__))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    at_start, opened, copied, snapshot = map(int, done.stdout.split())
    assert at_start <= opened <= 500 + 20
    assert copied == 0
    assert at_start < 500
    assert snapshot < 50_000 * 8
