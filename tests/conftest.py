import os
import shutil
import tempfile
import time

import pytest


@pytest.fixture
def place():
    """A directory that anyone may walk through (pytest's own is 0700, a root caller's cell is no root)."""
    path = tempfile.mkdtemp(prefix="saggar-test-", dir="/var/tmp")
    os.chmod(path, 0o755)
    yield path
    for base, directories, _ in os.walk(path):
        for name in directories:
            os.chmod(os.path.join(base, name), 0o700, follow_symlinks=True) if not os.path.islink(
                os.path.join(base, name)
            ) else None
    shutil.rmtree(path)


@pytest.fixture
def state(place):
    from saggar.isolation.state_host import open_state

    return open_state({"SAGGAR_STATE_DIR": f"{place}/state"})


@pytest.fixture
def workspace(place):
    path = f"{place}/workspace"
    os.mkdir(path)
    return path


@pytest.fixture
def settle():
    """Wait until the file systems' clock has moved: what was written before is then older than what comes."""
    from saggar.isolation.workspace_mount_host import coarse_now_ns

    def wait():
        before = coarse_now_ns()
        while coarse_now_ns() == before:
            time.sleep(0)

    return wait


@pytest.fixture
def contained(place, state, workspace, settle):
    """contained(function, **policy) runs the function in a real copy-on-write cell and gives the outcome."""
    from saggar.policy.model import LimitsPolicy, Policy, WorkspacePolicy
    from saggar.testing.workspace_cell import run_in_workspace

    scratch = f"{place}/scratch"
    os.mkdir(scratch)

    def run(command, *, mode="copy-on-write", require="any", disk_bytes=64 << 20, file=""):
        settle()
        policy = Policy(
            workspace=WorkspacePolicy(path=workspace, mode=mode),
            limits=LimitsPolicy(require=require, disk_bytes=disk_bytes),
            file=file,
        )
        outcome = run_in_workspace(state, policy, command, scratch=scratch)
        settle()
        return outcome

    return run
