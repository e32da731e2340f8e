import os

import pytest

from saggar.audit.sink_host import AuditLog
from saggar.isolation.apply_open_host import open_apply
from saggar.isolation.layer_host import open_layer


def put(path, text="x"):
    with open(path, "w") as file:
        file.write(text)


def ended(done):
    assert (done.status, done.error) == (0, "")
    done.run.end("exited")
    return done.run


def apply(run, *paths, skip=False, **options):
    audit = AuditLog(f"{run.path}/audit.jsonl", run.id)
    return open_apply(run, audit, **options).write(tuple(p.encode() for p in paths), skip_refused=skip)


def states():
    """What the current directory's entries are, but for the times of their reading."""
    found = {n: os.lstat(n) for n in os.listdir(".")}
    return {n: (s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for n, s in found.items()}


def kinds(run):
    return [(c.path.decode(), c.kind) for c in open_layer(run).changes()]


def refusals(done):
    return [(r.path.decode(), r.reason) for r in done.refused]


def test_every_kind_of_change(contained, workspace):
    for name in ("modified", "deleted", "mode", "same", "to_link", "to_dir"):
        put(f"{workspace}/{name}")
    os.makedirs(f"{workspace}/gone/sub")
    put(f"{workspace}/gone/sub/f")
    os.makedirs(f"{workspace}/fresh")
    put(f"{workspace}/fresh/old")
    put(f"{workspace}/fresh/kept")
    os.makedirs(f"{workspace}/to_file")

    def command():
        put("modified", "longer")
        os.unlink("deleted")
        os.chmod("mode", 0o755)
        put("same", "x")
        os.unlink("to_link")
        os.symlink("modified", "to_link")
        os.unlink("to_dir")
        os.mkdir("to_dir")
        put("to_dir/in")
        os.unlink("gone/sub/f")
        os.rmdir("gone/sub")
        os.rmdir("gone")
        os.unlink("fresh/old")
        os.unlink("fresh/kept")
        os.rmdir("fresh")
        os.mkdir("fresh")
        put("fresh/kept")
        os.rmdir("to_file")
        put("to_file")
        os.makedirs("new/deep")
        put("new/deep/f")
        os.chmod("new", 0o555)

    run = ended(contained(command))
    assert kinds(run) == [
        ("deleted", "deleted"),
        ("fresh/old", "deleted"),
        ("gone", "deleted"),
        ("mode", "mode"),
        ("modified", "modified"),
        ("new", "added"),
        ("new/deep", "added"),
        ("new/deep/f", "added"),
        ("to_dir", "type"),
        ("to_dir/in", "added"),
        ("to_file", "type"),
        ("to_link", "type"),
    ]
    done = apply(run)
    assert refusals(done) == []
    assert done.complete
    assert kinds(run) == []
    assert sorted(os.listdir(workspace)) == ["fresh", "mode", "modified", "new", "same", "to_dir", "to_file", "to_link"]
    assert os.readlink(f"{workspace}/to_link") == "modified"
    assert os.stat(f"{workspace}/new").st_mode & 0o777 == 0o555
    assert os.stat(f"{workspace}/new").st_uid == os.geteuid()
    os.chmod(f"{workspace}/new", 0o755)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        (lambda: put("modified", "theirs"), ("modified", "host_changed")),
        (lambda: os.unlink("modified"), ("modified", "host_deleted")),
        (lambda: put("replaced", "theirs"), ("replaced", "host_changed")),
        (lambda: os.unlink("replaced"), ("replaced", "host_deleted")),
        (lambda: put("deleted", "theirs"), ("deleted", "host_changed")),
        (lambda: put("added", "theirs"), ("added", "host_created")),
        (lambda: put("dir/f", "theirs"), ("dir", "host_changed")),
        (lambda: put("dir/new", "theirs"), ("dir", "host_changed")),
        (lambda: os.chmod("modified", 0o600), ("modified", "host_changed")),
        (lambda: (os.rename("below", "x"), os.mkdir("below"), put("below/f")), ("below/f", "host_changed")),
        (lambda: (os.rename("below", "x"), os.rename("twin", "below")), ("below/f", "host_directory_replaced")),
    ],
)
def test_what_the_host_changed_since_is_refused(contained, workspace, host, reason, settle):
    for name in ("modified", "replaced", "deleted"):
        put(f"{workspace}/{name}")
    for name in ("dir", "below", "twin"):
        os.mkdir(f"{workspace}/{name}")
        put(f"{workspace}/{name}/f")

    def command():
        put("modified", "ours")
        put("new", "ours")
        os.rename("new", "replaced")
        os.unlink("deleted")
        put("added", "ours")
        os.unlink("dir/f")
        os.rmdir("dir")
        put("below/f", "ours")

    run = ended(contained(command))
    os.chdir(workspace)
    host()
    before = states()
    done = apply(run)
    assert reason in refusals(done)
    assert len(done.refused) <= 2
    assert done.written == []
    assert states() == before
    skipped = apply(run, skip=True)
    assert reason in refusals(skipped)
    assert len(skipped.written) >= 4
    assert apply(run, overwrite=True).complete
    assert kinds(run) == []
    os.chdir("/")


def test_without_a_snapshot_a_changed_directory_refuses_new_names(contained, workspace):
    put(f"{workspace}/there")
    run = ended(contained(lambda: put("added")))
    os.unlink("snapshot", dir_fd=run.fd)
    put(f"{workspace}/unrelated")
    assert refusals(apply(run)) == [("added", "host_directory_changed")]
    os.unlink(f"{workspace}/unrelated")
    assert refusals(apply(run)) == [("added", "host_directory_changed")]


def test_selected_paths_bring_their_directories(contained, workspace):
    def command():
        os.makedirs("a/b")
        put("a/b/f")
        put("a/b/g")
        put("c")

    run = ended(contained(command))
    done = apply(run, "a/b/f")
    assert [c.path for c in done.written] == [b"a", b"a/b", b"a/b/f"]
    assert not done.complete
    assert os.listdir(f"{workspace}/a/b") == ["f"]
    assert apply(run).complete


def test_an_interrupted_apply_goes_on(contained, workspace):
    put(f"{workspace}/b")

    def command():
        for name in "abc":
            put(name, "ours")
        os.mkdir("d")
        put("d/e")

    run = ended(contained(command))
    os.unlink("snapshot", dir_fd=run.fd)

    audit = AuditLog(f"{run.path}/audit.jsonl", run.id)
    for stop in range(1, 5):
        work = open_apply(run, audit)
        real, count = work._one, [0]

        def one(change, host_dir, upper, name, temporary, real=real, count=count, stop=stop):
            count[0] += 1
            if count[0] > 1:
                # as if killed between making the temporary name and the rename
                put_at = os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=host_dir)
                os.close(put_at)
                raise KeyboardInterrupt
            real(change, host_dir, upper, name, temporary)

        cls = type(work)
        original, cls._one = cls._one, lambda self, *a, one=one: one(*a)
        try:
            with pytest.raises(KeyboardInterrupt):
                work.write()
        finally:
            cls._one = original
    assert apply(run).complete
    assert sorted(os.listdir(workspace)) == ["a", "b", "c", "d"]
    assert open(f"{workspace}/b").read() == "ours"
