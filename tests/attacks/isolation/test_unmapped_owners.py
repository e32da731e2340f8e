"""What an ordinary user's cell cannot do with files of other owners: tried for real by a root that becomes one."""

import errno
import os

import pytest

from saggar.isolation.state_host import State
from saggar.isolation.syscalls_host import PR_SET_DUMPABLE, prctl
from saggar.policy.model import Policy, WorkspacePolicy
from saggar.testing.workspace_cell import run_in_workspace

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make files of several owners")
USER, OTHER_GROUP = 65534, 50


def as_user(function):
    """Run `function` in a child that became an ordinary user, a member of OTHER_GROUP too; it must not raise."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([OTHER_GROUP])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            prctl(PR_SET_DUMPABLE, 1)  # a change of ids makes a process's /proc files root's
            function()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def failure(act):
    try:
        act()
    except OSError as e:
        return errno.errorcode[e.errno]
    return "ok"


def test_what_fails_is_what_was_said(place, workspace):
    for name, gid, mode in (("own", USER, 0o644), ("shared", OTHER_GROUP, 0o664)):
        with open(f"{workspace}/{name}", "w") as file:
            file.write("x")
        os.chown(f"{workspace}/{name}", USER, gid)
        os.chmod(f"{workspace}/{name}", mode)
    os.mkdir(f"{workspace}/group")
    os.chown(f"{workspace}/group", USER, OTHER_GROUP)
    os.chmod(f"{workspace}/group", 0o2775)
    for path in (workspace, f"{place}/scratch", f"{place}/state"):
        os.makedirs(path, exist_ok=True)
        os.chown(path, USER, USER)

    def command():
        found = {
            "own": failure(lambda: open("own", "a").close()),
            "shared": failure(lambda: open("shared", "a").close()),
            "rename": failure(lambda: os.rename("shared", "renamed")),
            "read": failure(lambda: open("shared").close()),
            "in_group": failure(lambda: open("group/new", "w").close()),
            "remove": failure(lambda: os.unlink("shared")),
        }
        assert found == {
            "own": "ok",
            "shared": "EOVERFLOW",
            "rename": "EOVERFLOW",
            "read": "ok",
            "in_group": "EOVERFLOW",
            "remove": "ok",
        }

    def run():
        done = run_in_workspace(
            State(f"{place}/state"),
            Policy(workspace=WorkspacePolicy(path=workspace)),
            command,
            scratch=f"{place}/scratch",
        )
        assert (done.status, done.error) == (0, ""), done.error
        said = {c.code: c.paths for c in done.workspace.caveats}
        assert set(said["unmapped_owner"]) == {"shared", "group"}
        assert said["setgid_directory"] == ("group/",)
        notices = done.workspace.notices()
        assert len(notices) == 2
        assert all("EOVERFLOW" in n for n in notices)

    as_user(run)
