"""Descriptors that lie in Unix sockets are counted by user, for all cells of a caller together."""

import asyncio
import os
import resource
import sys
from pathlib import Path

import pytest

import saggar
from saggar.core.room_host import cell_limit
from saggar.policy.model import Policy, WorkspacePolicy

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
HOG = """
import array, os, resource, socket, sys, time
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [os.open("/dev/null", 0)] * 253))]
kept, sent, why = [], 0, 0
while not why and sent < 2 * limit:
    kept.append(socket.socketpair())
    kept[-1][0].setblocking(False)
    try:
        while sent < 2 * limit:
            kept[-1][0].sendmsg([b"x"], rights)
            sent += 253
    except BlockingIOError:
        pass
    except OSError as error:
        why = error.errno
print(limit, sent, why, flush=True)
time.sleep(60)
"""


@pytest.fixture
def policy(tmp_path, monkeypatch):
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    Path(workspace, "hog.py").write_text(HOG)
    return Policy(workspace=WorkspacePolicy(path=str(workspace)))


@pytest.fixture(params=["all", "few"])
def _own_limit(request):
    """As a login gives it, few, and one that is up already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if request.param == "all" else min(1024, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_own_limit")
def test_a_cell_that_fills_sockets_with_descriptors_stops_no_other(policy):
    """The launcher of an ordinary user died of it, with every cell; no cell of root's started while it lasted."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def both():
        # the second of a launcher, which is born of a template
        for _ in range(2):
            assert (await saggar.run(["/bin/true"], policy)).exit_code == 0
        hog = await saggar.spawn([PYTHON, "-I", "hog.py"], policy)
        said = await hog.stdout.readline()
        others = [await saggar.run(["/bin/echo", "runs"], policy) for _ in range(3)]
        hog.kill()
        return said, others, await hog.wait()

    said, others, ended = asyncio.run(both())
    limit, sent, why = map(int, said.split())
    # it did all that it may
    assert (limit, why) == (cell_limit(*before)[1], 109)
    assert sent > limit
    assert [(r.cause, r.stdout) for r in others] == [("exit", b"runs\n")] * 3
    assert ended.cause != "launcher_died"
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_the_command_has_the_callers_own_soft_limit(policy):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    result = saggar.run_sync(["/bin/sh", "-c", "ulimit -Sn; ulimit -Hn"], policy)
    most = hard - hard // 4
    assert result.stdout == b"%d\n%d\n" % (min(soft, most), most)
