import functools
import os
import shutil
import signal
import tempfile
import time

import hypothesis
import pytest

# a machine that is busy with something else is no failure; pytest-timeout bounds a test
hypothesis.settings.register_profile("saggar", deadline=None)
hypothesis.settings.load_profile("saggar")


@pytest.fixture(scope="session", autouse=True)
def _close_what_is_dropped():
    """Tests drop state directories, runs and logs by the thousand; a descriptor above 1023 is beyond `select`."""
    from saggar.audit.read_host import LogReader
    from saggar.audit.sink_host import AuditLog
    from saggar.isolation.state_host import RunDir, State

    def let_go(self):
        try:
            self.close()
        except (AttributeError, OSError):
            pass  # half made, or closed by number

    with pytest.MonkeyPatch.context() as patch:
        for kind in (State, RunDir, AuditLog, LogReader):
            patch.setattr(kind, "__del__", let_go, raising=False)
        yield


def pytest_configure(config):
    # a shell starts what it puts in the background with these ignored, and what we start would inherit that
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_runtest_setup(item):
    """A test that needs something of the host is skipped by the name of what is missing."""
    if item.get_closest_marker("root") and os.geteuid():
        pytest.skip("needs a root caller")
    for marker in item.iter_markers("requires_program"):
        for name in marker.args:
            if not shutil.which(name):
                pytest.skip(f"no `{name}` on this host")
    for marker in item.iter_markers("requires_path"):
        for path in marker.args:
            if not os.access(path, os.R_OK | os.W_OK):
                pytest.skip(f"no usable `{path}` on this host")
    if item.get_closest_marker("requires_userns") and not _userns():
        pytest.skip("no unprivileged user namespaces on this host")


@functools.cache
def _userns():
    """By trying it: a child unshares a user namespace."""
    import ctypes

    pid = os.fork()
    if not pid:
        clone_newuser = 0x10000000
        os._exit(1 if ctypes.CDLL(None).unshare(clone_newuser) else 0)
    return os.waitpid(pid, 0)[1] == 0


@pytest.fixture
def place():
    """A directory that anyone may walk through (pytest's own is 0700, a root caller's cell is no root)."""
    path = tempfile.mkdtemp(prefix="saggar-test-", dir="/var/tmp")
    os.chmod(path, 0o755)
    yield path
    from saggar.isolation.discard_host import remove_tree

    # tests leave trees that are too deep, and too closed, for shutil
    fd = os.open("/var/tmp", os.O_RDONLY)
    remove_tree(os.path.basename(path), fd)
    os.close(fd)


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
    from saggar.isolation.workspace_host import tmpfs_has_user_xattrs
    from saggar.policy.model import LimitsPolicy, Policy, WorkspacePolicy
    from saggar.testing.workspace_cell import run_in_workspace

    scratch = f"{place}/scratch"
    os.mkdir(scratch)

    def run(command, *, mode="copy-on-write", require="any", disk_bytes=64 << 20, file=""):
        if require == "enforced" and not tmpfs_has_user_xattrs():
            pytest.skip("tmpfs has no user extended attributes on this kernel (Linux 6.6)")
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
