"""What the cell saw is what apply makes: random trees, random changes, a real overlay mount in a user namespace.

Cites apply_host I2, I4, I5 and layer_host I2.
"""

import os
import shutil
import stat
from random import Random

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from saggar.audit.sink_host import AuditLog
from saggar.isolation.apply_open_host import open_apply
from saggar.isolation.layer_host import open_layer
from saggar.isolation.layer_save_host import save_memory_layer
from saggar.isolation.workspace_host import tmpfs_has_user_xattrs

ACTS = (
    ["file"] * 4
    + ["remove"] * 5
    + ["dir"] * 2
    + ["mode"] * 3
    + ["rename"] * 3
    + ["link", "append", "touch", "hardlink", "sparse"]
)
#: every run begins with this and a few random acts, so that most steps find something to change
BASE = ["a/a/a", "a/a/b", "a/b", "b/a", "b/b/a", "b/b/b", "b/b/c/a", "c", "d/a"]


def script(random, length):
    """Random steps for `act`, as data."""

    def path():
        return "/".join(random.choices("abcd", k=random.choice([1, 1, 2, 2, 3])))

    return [(random.choice(ACTS), path(), path(), random.randrange(4)) for _ in range(length)]


def act(step, path, other, number):
    """One change in the current directory; what cannot be done there is no change."""
    try:
        if step == "file":
            with open(path, "w") as file:
                file.write(f"content {number}")
        elif step == "append":
            with open(path, "a") as file:
                file.write(f"+{number}")
        elif step == "dir":
            os.makedirs(path, exist_ok=True)
        elif step == "link":
            os.symlink(["a", "b/c", "nowhere", "d"][number], path)
        elif step == "remove":
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        elif step == "mode":
            if not os.path.islink(path):
                os.chmod(path, [0o644, 0o755, 0o700, 0o600][number] | (0o100 if os.path.isdir(path) else 0))
        elif step == "rename":
            os.rename(path, other)
        elif step == "touch":
            os.utime(path, follow_symlinks=False)
        elif step == "hardlink":
            os.link(path, other, follow_symlinks=False)
        elif step == "sparse" and not os.path.islink(path):
            with open(path, "wb") as file:
                file.seek(1 << 20)
                file.write(b"end")
                file.truncate(1 << 22)
    except OSError:
        pass


def picture(top):
    """A tree as values: type, mode, content or target. Links have no mode."""
    seen = {}
    for base, directories, files in os.walk(top):
        for name in [*directories, *files]:
            path = os.path.join(base, name)
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                seen[os.path.relpath(path, top)] = ("link", os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                seen[os.path.relpath(path, top)] = ("dir", stat.S_IMODE(status.st_mode))
            else:
                with open(path, "rb") as file:
                    seen[os.path.relpath(path, top)] = ("file", stat.S_IMODE(status.st_mode), hash(file.read()))
    return seen


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), length=st.integers(1, 16), memory=st.booleans())
def test_apply_makes_what_the_cell_saw(seed, length, memory, contained, workspace, state):
    random = Random(seed)
    tree, steps = script(random, 4), script(random, length)
    note(f"tree = {tree}\nsteps = {steps}")
    for base, directories, _ in os.walk(workspace):
        for name in directories:
            if not os.path.islink(os.path.join(base, name)):
                os.chmod(os.path.join(base, name), 0o755)
    for name in os.listdir(workspace):
        path = os.path.join(workspace, name)
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    here = os.open("/", os.O_RDONLY)
    os.chdir(workspace)
    for path in BASE:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        act("file", path, path, 0)
    for step in tree:
        act(*step)
    os.fchdir(here)
    os.close(here)
    before = picture(workspace)
    pipe_r, pipe_w = os.pipe()

    def command():
        for step in steps:
            act(*step)
        with os.fdopen(pipe_w, "w") as report:
            report.write(repr(picture(".")))

    done = contained(command, require="enforced" if memory and tmpfs_has_user_xattrs() else "any")
    os.close(pipe_w)
    with os.fdopen(pipe_r) as report:
        saw = eval(report.read())
    assert (done.status, done.error) == (0, "")
    assert picture(workspace) == before
    if done.upper_fd >= 0:
        save_memory_layer(done.run, done.upper_fd)
    done.run.end("exited")
    layer = open_layer(done.run)
    changed = layer.changes()
    assert (changed == []) == (saw == before)
    audit = AuditLog(f"{done.run.path}/audit.jsonl", done.run.id)
    apply = open_apply(done.run, audit)
    result = apply.write()
    assert result.refused == []
    assert picture(workspace) == saw
    assert layer.changes() == []
    for opened in (layer, apply.layer, audit, done.run):
        opened.close()
    state.discard(state.open_run(done.run.id))
