import os
import stat
import tempfile

import pytest

from saggar.core.errors import Unenforceable, UsageError
from saggar.isolation.state_host import open_state
from saggar.isolation.workspace_host import HOST_IDS, prepare, tmpfs_has_user_xattrs
from saggar.policy.model import LimitsPolicy, Policy, WorkspacePolicy
from saggar.testing.workspace_cell import caller_ids


def prepared(state, path, *, mode="copy-on-write", env=None, broad=False, file="", cwd="/"):
    policy = Policy(workspace=WorkspacePolicy(path=path, mode=mode, unsafe_broad=broad), file=file)
    run = state.new_run()
    return prepare(policy, run, state, caller=caller_ids(), env=env or {"HOME": "/nonexistent"}, cwd=cwd), run


def test_broad_workspaces_are_refused(state, place):
    home = f"{place}/home/user"
    os.makedirs(home)
    cases = [("/", "is `/`"), (home, "is the caller's home"), (f"{place}/home", "is above the home directory")]
    for path, message in cases:
        with pytest.raises(UsageError, match=message):
            prepared(state, path, env={"HOME": home}, mode="read-only")
        prepared_path = "/" if path == "/" else path
        if not state.path.startswith(prepared_path):
            prepared(state, path, env={"HOME": home}, mode="read-only", broad=True)[0].close()


def test_a_symlink_to_the_home_is_the_home(state, place):
    os.makedirs(f"{place}/home")
    os.symlink("home", f"{place}/link")
    with pytest.raises(UsageError, match="home directory"):
        prepared(state, f"{place}/link", env={"HOME": f"{place}/home"})


def test_a_symlinked_workspace_is_resolved_once_and_said(state, place, workspace):
    os.symlink("workspace", f"{place}/link")
    found, _ = prepared(state, f"{place}/link")
    assert (found.path, found.resolved_from) == (workspace, f"{place}/link")
    assert prepared(state, "", cwd=workspace)[0].path == workspace


def test_the_state_may_not_be_inside_or_above(place, workspace):
    inside = open_state({"SAGGAR_STATE_DIR": f"{workspace}/state"})
    with pytest.raises(UsageError, match="is inside the workspace"):
        prepared(inside, workspace, broad=True)
    above = open_state({"SAGGAR_STATE_DIR": place})
    with pytest.raises(UsageError, match="is inside saggar's state directory"):
        prepared(above, workspace)
    os.chmod(place, 0o755)


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda p: None, "does not exist"), (lambda p: open(p, "w").close(), "is not a directory")],
)
def test_missing_and_no_directory(state, place, make, message):
    make(f"{place}/there")
    with pytest.raises(UsageError, match=message):
        prepared(state, f"{place}/there")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable(state, workspace):
    os.chmod(workspace, 0o311)
    with pytest.raises(UsageError, match="cannot be read"):
        prepared(state, workspace)
    os.chmod(workspace, 0o755)


def test_the_layer_belongs_to_the_cells_user(state, workspace):
    os.chmod(workspace, 0o2775)
    found, run = prepared(state, workspace)
    owner = os.stat("layer/upper", dir_fd=run.fd)
    assert stat.S_IMODE(owner.st_mode) == 0o2775
    expected = HOST_IDS + os.stat(workspace).st_uid if os.geteuid() == 0 else os.geteuid()
    assert owner.st_uid == expected
    assert found.layer == "disk"


def test_modes_without_changes_make_no_layer(state, workspace):
    for mode in ("read-only", "read-write", "none"):
        found, run = prepared(state, workspace, mode=mode)
        assert found.layer_fd == -1
        assert "layer" not in os.listdir(run.fd)


def test_a_policy_file_of_the_workspace_is_known(state, workspace, place):
    os.mkdir(f"{workspace}/conf")
    open(f"{workspace}/conf/saggar.toml", "w").close()
    assert prepared(state, workspace, file=f"{workspace}/conf/saggar.toml")[0].plan["protect"] == "conf/saggar.toml"
    assert prepared(state, workspace, file=f"{place}/workspace2/saggar.toml")[0].plan["protect"] == ""


@pytest.mark.skipif(tmpfs_has_user_xattrs(), reason="this kernel's tmpfs has user extended attributes")
def test_an_enforced_disk_limit_needs_a_tmpfs_with_user_attributes(state, workspace):
    policy = Policy(workspace=WorkspacePolicy(path=workspace), limits=LimitsPolicy(require="enforced"))
    with pytest.raises(Unenforceable, match="tmpfs has no user extended attributes"):
        prepare(policy, state.new_run(), state, caller=caller_ids(), env={}, cwd="/")


@pytest.mark.skipif(tmpfs_has_user_xattrs(), reason="this kernel's tmpfs has user extended attributes")
def test_a_state_directory_without_user_attributes_is_refused(workspace):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        state = open_state({"SAGGAR_STATE_DIR": f"{place}/state"})
        with pytest.raises(Unenforceable, match="takes no user extended attributes"):
            prepared(state, workspace)


def test_no_descriptor_is_left(state, workspace):
    before = len(os.listdir("/proc/self/fd"))
    found, run = prepared(state, workspace)
    found.finish()
    run.close()
    assert len(os.listdir("/proc/self/fd")) == before
