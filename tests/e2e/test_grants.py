"""`isolation.read`: what the policy names is there, read-only, and nothing beside it."""

import os

import pytest

import saggar
from saggar.core.errors import UsageError
from saggar.policy.model import IsolationPolicy, Policy, WorkspacePolicy


@pytest.fixture
def host(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    data = tmp_path / "data"
    data.mkdir()
    (data / "open").write_text("open\n")
    (data / "private").write_text("private\n")
    (data / "private").chmod(0o600)
    (tmp_path / "beside").write_text("secret\n")
    (tmp_path / "link").symlink_to(data)
    return tmp_path


def granted(*paths):
    return Policy(isolation=IsolationPolicy(read=tuple(map(str, paths))))


def test_a_directory_is_there_read_only_private_files_included(host):
    result = saggar.run_sync(f"cat {host}/data/*; echo x > {host}/data/open; ls {host}", granted(host / "data"))
    assert result.stdout == b"open\nprivate\ndata\nwork\n"
    assert b"Read-only file system" in result.stderr


def test_a_file_is_there_and_its_directory_is_not(host):
    result = saggar.run_sync(f"cat {host}/data/private; ls {host}/data", granted(host / "data" / "private"))
    assert result.stdout == b"private\nprivate\n"


def test_a_link_is_followed_when_the_run_begins(host):
    result = saggar.run_sync(f"cat {host}/link/open", granted(host / "link"))
    assert result.stdout == b"open\n"


def test_a_grant_inside_the_workspace_stays_read_only(host):
    inner = host / "work" / "fixed"
    inner.mkdir()
    (inner / "f").write_text("f\n")
    result = saggar.run_sync("echo x > fixed/f; echo y > free; cat fixed/f free", granted(inner))
    assert result.stdout == b"f\ny\n"


def test_a_workspace_inside_a_grant_stays_writable(host, tmp_path_factory, monkeypatch):
    # what is shown may not hold the state directory
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path_factory.mktemp("state") / "s"))
    result = saggar.run_sync("echo y > free; cat free; cat ../data/open", granted(host))
    assert result.stdout == b"y\nopen\n"


def test_nothing_is_there_that_was_not_named(host):
    result = saggar.run_sync(f"cat {host}/beside {host}/data/open", granted())
    assert result.stdout == b""


@pytest.mark.parametrize("top", ["/proc", "/sys", "/dev", "/proc/self/task", "/dev/shm"])
def test_what_a_cell_has_of_its_own_is_neither_workspace_nor_grant(host, top):
    (host / "there").symlink_to(top)
    # the real path decides, in whatever words it is named
    for path in (top, host / "there"):
        policy = Policy(workspace=WorkspacePolicy(path=str(path), mode="read-only", unsafe_broad=True))
        with pytest.raises(UsageError, match="cannot be shown inside"):
            saggar.run_sync(["true"], policy)
        with pytest.raises(UsageError, match="cannot be shown inside"):
            saggar.run_sync(["true"], granted(path))


def test_as_many_grants_as_a_run_can_be_given_and_one_more(host):
    most = 120 if os.geteuid() == 0 else 240
    paths = [host / "data" / str(n) for n in range(most + 1)]
    for path in paths:
        path.write_text("x")
    result = saggar.run_sync(["cat", *map(str, paths[:most])], granted(*paths[:most]))
    assert result.stdout == b"x" * most, result
    with pytest.raises(UsageError, match=f"shown {most + 1} paths of the host, and one run can be given {most}"):
        saggar.run_sync(["true"], granted(*paths))


def test_a_missing_grant_is_an_error_before_the_start(host):
    with pytest.raises(UsageError, match="cannot be opened"):
        saggar.run_sync(["true"], granted(host / "nothing"))
    assert not os.listdir(host / "state" / "runs")
