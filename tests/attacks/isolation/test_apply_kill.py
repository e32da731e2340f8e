"""SIGKILL of `saggar apply` at random moments: a repetition completes it, and nothing temporary is left.

Cites apply_host I2 and I4.
"""

import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from saggar.audit.sink_host import AuditLog
from saggar.isolation.apply_host import Apply
from saggar.isolation.apply_open_host import open_apply

ROUNDS = 20


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_killed_apply_is_completed_by_the_next(contained, workspace, state, snapshot):
    for d in range(12):
        os.makedirs(f"{workspace}/old{d}/sub")
        for i in range(6):
            with open(f"{workspace}/old{d}/{i}", "w") as file:
                file.write("host")
        with open(f"{workspace}/old{d}/sub/f", "w") as file:
            file.write("host")

    def command():
        import shutil

        for d in range(12):
            with open(f"old{d}/0", "w") as file:
                file.write("ours" * 2000)
            with open("t", "w") as file:
                file.write("replaced")
            os.rename("t", f"old{d}/1")
            os.unlink(f"old{d}/2")
            os.unlink(f"old{d}/3")
            os.symlink("0", f"old{d}/3")
            os.chmod(f"old{d}/4", 0o755)
            os.unlink(f"old{d}/5")
            os.mkdir(f"old{d}/5")
            with open(f"old{d}/5/in", "w") as file:
                file.write("in")
            shutil.rmtree(f"old{d}/sub")
            os.makedirs(f"new{d}/deep")
            with open(f"new{d}/deep/f", "w") as file:
                file.write("new")

    done = contained(command)
    assert (done.status, done.error) == (0, "")
    run_id = done.run.id
    if not snapshot:
        os.unlink("snapshot", dir_fd=done.run.fd)
    done.run.end("exited")
    done.run.close()
    noise = random.Random(1)

    def once():
        run = state.open_run(run_id)
        audit = AuditLog(f"{run.path}/audit.jsonl", run.id)
        result = open_apply(run, audit).write()
        return 0 if result.complete else 3

    killed = 0
    for _ in range(ROUNDS):
        pid = os.fork()
        if pid == 0:
            code = 9
            try:
                code = once()
            finally:
                os._exit(code)
        # the moment is the point here: somewhere in the tenths of a second that an apply takes
        until = time.monotonic() + noise.random() * 0.2
        while time.monotonic() < until:
            pass
        os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, -signal.SIGKILL)
        killed += status != 0
    assert once() == 0
    assert killed
    left = [n for base, ds, fs in os.walk(workspace) for n in [*ds, *fs] if n.startswith(".saggar-")]
    assert left == []
    for d in range(12):
        old = f"{workspace}/old{d}"
        assert sorted(os.listdir(old)) == ["0", "1", "3", "4", "5"]
        assert open(f"{old}/0").read() == "ours" * 2000
        assert open(f"{old}/1").read() == "replaced"
        assert os.readlink(f"{old}/3") == "0"
        assert os.stat(f"{old}/4").st_mode & 0o777 == 0o755
        assert os.listdir(f"{old}/5") == ["in"]
        assert open(f"{workspace}/new{d}/deep/f").read() == "new"


def git(*words, cwd):
    env = os.environ | {
        f"GIT_{who}_{what}": "a@a.test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    done = subprocess.run(["git", *words], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_repository_can_be_read_whatever_change_an_apply_stops_after(contained, workspace, state):
    git("init", "-q", ".", cwd=workspace)
    for number in range(3):
        with open(f"{workspace}/f{number}", "w") as file:
            file.write(str(number))
        git("add", ".", cwd=workspace)
        git("commit", "-qm", str(number), cwd=workspace)

    def command():
        git("checkout", "-q", "-b", "work", cwd=".")
        with open("f0", "a") as file:
            file.write("more")
        git("commit", "-qam", "work", cwd=".")
        git("gc", "-q", "--prune=now", cwd=".")

    done = contained(command)
    assert (done.status, done.error) == (0, "")
    done.run.end("exited")
    audit = AuditLog(f"{done.run.path}/audit.jsonl", done.run.id)
    original = Apply._one
    stops = 0
    while True:
        count = []

        def one(self, *words, count=count):
            if count:
                raise KeyboardInterrupt
            count.append(1)
            original(self, *words)

        work = open_apply(done.run, audit)
        Apply._one = one
        try:
            assert work.write().refused == []
            break
        except KeyboardInterrupt:
            stops += 1
        finally:
            Apply._one = original
            work.layer.close()
        git("fsck", "--full", cwd=workspace)
        assert git("log", "--format=%s", cwd=workspace) in ("2\n1\n0\n", "work\n2\n1\n0\n")
    assert stops > 10
    assert git("log", "--format=%s", cwd=workspace) == "work\n2\n1\n0\n"
    assert git("status", "--porcelain", cwd=workspace) == ""
