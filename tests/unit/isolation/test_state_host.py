import os
import stat

import pytest

from saggar.core.errors import UsageError
from saggar.isolation.state_host import (
    ENDED,
    KEEP_S,
    LIVE,
    State,
    new_id,
    open_state,
    state_path,
    valid_id,
    valid_prefix,
)

NOW = 1_796_032_800.0


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({"SAGGAR_STATE_DIR": "/a/b"}, "/a/b"),
        ({"SAGGAR_STATE_DIR": "/a/b", "XDG_STATE_HOME": "/x"}, "/a/b"),
        ({"XDG_STATE_HOME": "/x/"}, "/x/saggar"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/saggar"),
        ({"HOME": "/h"}, "/h/.local/state/saggar"),
    ],
)
def test_where_the_state_is(env, path):
    assert state_path(env) == path


@pytest.mark.parametrize(
    ("env", "message"),
    [({"SAGGAR_STATE_DIR": "a"}, "not an absolute path"), ({}, "no place"), ({"HOME": "h"}, "no place")],
)
def test_no_place_for_the_state(env, message):
    with pytest.raises(UsageError, match=message):
        state_path(env)


def test_ids():
    run_id = new_id(NOW, bytes(3))
    assert run_id == "r20261130T100000-222aaa"
    assert valid_id(run_id)
    for i in range(1, len(run_id) + 1):
        assert valid_prefix(run_id[:i])


def test_ids_sort_by_time():
    moments = [NOW + n / 4096 for n in range(9000)]
    ids = [new_id(moment, os.urandom(3)) for moment in moments]
    assert ids == sorted(ids)
    assert all(valid_id(i) for i in ids)


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "/", "r2026/..", "x2026", "r20261130T100000-AAAAAA", "r20261130t", "r20261130T100000-aaaaaaa",
     "r20261130T100000-a\n", "r2026\0", "r２０２６", "*"],
)  # fmt: skip
def test_nothing_else_is_an_id(state, text):
    assert not valid_prefix(text)
    with pytest.raises(UsageError, match="is not a run id"):
        state.open_run(text)


def test_a_made_directory_is_private(place):
    os.umask(0)
    State(f"{place}/a/b/state")
    assert stat.S_IMODE(os.stat(f"{place}/a/b/state").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(f"{place}/a/b/state/runs").st_mode) == 0o700
    os.umask(0o022)


def test_a_loose_directory_is_tightened(place):
    os.mkdir(f"{place}/state")
    os.chmod(f"{place}/state", 0o777)
    open_state({"SAGGAR_STATE_DIR": f"{place}/state"})
    assert stat.S_IMODE(os.stat(f"{place}/state").st_mode) == 0o700


def test_a_symlink_is_refused(place):
    os.mkdir(f"{place}/real")
    os.symlink("real", f"{place}/state")
    with pytest.raises(UsageError, match="is a symbolic link"):
        open_state({"SAGGAR_STATE_DIR": f"{place}/state"})
    assert os.listdir(f"{place}/real") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_a_directory_given_away_is_refused(place):
    os.mkdir(f"{place}/state")
    os.chown(f"{place}/state", 65534, 65534)
    with pytest.raises(UsageError, match="belongs to user 65534"):
        open_state({"SAGGAR_STATE_DIR": f"{place}/state"})


@pytest.mark.skipif(os.geteuid() == 0, reason="needs an unprivileged caller")
def test_a_directory_of_root_is_refused():
    with pytest.raises(UsageError, match="belongs to user 0"):
        open_state({"SAGGAR_STATE_DIR": "/usr"})


def test_a_run_is_alive_while_its_lock_is_held(state):
    run = state.new_run()
    assert run.state() == LIVE
    assert state.sweep() == ([run.id], [])
    other = state.open_run(run.id)
    assert not other.acquire()
    assert not state.discard(other)
    run.end("exited")
    run.close()
    assert other.acquire()
    assert other.state() == ENDED
    assert other.meta()["cause"] == "exited"


def test_a_run_whose_holder_died_is_marked(state):
    run = state.new_run()
    run.update(argv=["true"])
    run.close()
    assert state.sweep() == ([], [run.id])
    assert state.sweep() == ([], [])
    assert state.open_run(run.id).meta()["cause"] == "supervisor_died"
    assert state.open_run(run.id).meta()["argv"] == ["true"]


def test_unique_prefixes_open_a_run(state):
    first, second = state.new_run(now=NOW), state.new_run(now=NOW + 60)
    assert state.open_run(second.id[:-8]).id == second.id
    assert state.open_run(first.id).id == first.id
    with pytest.raises(UsageError, match="begins 2 run ids"):
        state.open_run("r2026")
    with pytest.raises(UsageError, match="no run"):
        state.open_run("r19")


def test_expired_runs_go_and_others_stay(state):
    old, young = state.new_run(), state.new_run()
    for run in (old, young):
        run.end("exited")
    os.utime("lock", (0, 0), dir_fd=old.fd)
    old.close()
    young.close()
    state.sweep()
    assert state.names() == [young.id]
    state.sweep(now=young_end(state, young.id) + KEEP_S + 1)
    assert state.names() == []


def young_end(state, run_id):
    return state.open_run(run_id).ended()


def test_half_made_and_half_removed_runs_go(state):
    runs = f"{state.path}/runs"
    os.makedirs(f"{runs}/.gone-r20261130T100000-aaaaaa/layer/work/work", mode=0o700)
    os.chmod(f"{runs}/.gone-r20261130T100000-aaaaaa/layer/work/work", 0)
    os.mkdir(f"{runs}/.new-r20261130T100000-bbbbbb")
    state.sweep()
    assert os.listdir(runs) == [".new-r20261130T100000-bbbbbb"]
    state.sweep(now=os.stat(f"{runs}/.new-r20261130T100000-bbbbbb").st_ctime + 61)
    assert os.listdir(runs) == []


def test_meta_survives_odd_strings_and_damage(state):
    run = state.new_run()
    run.update(argv=["a\udcff", "b"])
    assert state.open_run(run.id).meta()["argv"] == ["a\\udcff", "b"]
    with open(f"{run.path}/meta.jsonl", "a") as file:
        file.write('\n{"argv":')
    run.update(cause="exit")
    assert state.open_run(run.id).meta() == {"argv": ["a\\udcff", "b"], "cause": "exit"}


def test_discard_needs_no_permission_and_no_short_path(state):
    run = state.new_run()
    os.makedirs(f"{run.path}/layer/work/work")
    fd = os.open(f"{run.path}/layer", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, 0, dir_fd=below))
        os.mkdir(".moved-1", dir_fd=below)
        os.close(fd)
        fd = below
    os.close(fd)
    os.symlink("/etc", f"{run.path}/layer/link")
    os.chmod(f"{run.path}/layer/work/work", 0)
    os.chmod(f"{run.path}/layer/d/d", 0o500)
    os.chmod(f"{run.path}/layer/d", 0)
    run.end("exited")
    run.close()
    assert state.discard(state.open_run(run.id))
    assert os.listdir(f"{state.path}/runs") == []
    assert os.path.exists("/etc/passwd")
