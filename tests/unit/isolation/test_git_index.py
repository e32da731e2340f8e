"""An index: what git writes passes, and no entry that leads elsewhere does, however it is hidden."""

import os
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saggar.isolation.git_index import digest_size, index_fault, is_index


def git(*words, cwd, **more):
    env = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    return subprocess.run(["git", *words], cwd=cwd, env=env, check=True, capture_output=True, **more).stdout


@pytest.fixture(scope="module", params=["sha1", "sha256"])
def repository(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("repository")
    git("init", "-q", f"--object-format={request.param}", cwd=path)
    name = git("hash-object", "-w", "--stdin", cwd=path, input=b"x").decode().strip()
    long = "/".join(["d" * 200] * 25)
    paths = [f"dir{i % 90}/sub{i % 7}/file{i}" for i in range(21000)] + [f"{long}/x", "ä/ö", ".gitignore", "a.git/x"]
    git("update-index", "--index-info", cwd=path, input="".join(f"100644 {name} 0\t{p}\n" for p in paths).encode())
    return path, {"sha1": 20, "sha256": 32}[request.param]


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("threads", [1, 4])
def test_what_git_writes_passes(repository, version, threads):
    path, digest = repository
    git("config", "index.threads", str(threads), cwd=path)
    git("update-index", "--index-version", str(version), cwd=path)
    for flag in ("--skip-worktree", "--no-skip-worktree"):
        git("update-index", flag, "a.git/x", cwd=path)
        data = Path(path, ".git/index").read_bytes()
        assert (b"IEOT" in data) == (threads > 1)
        assert index_fault(data, digest) == ""
        assert index_fault(data, 52 - digest)
    assert digest_size(Path(path, ".git/config").read_bytes()) == digest


def entry(name, *, mode=0o100644, flags=None, version=2):
    flags = len(name) if flags is None else flags
    body = struct.pack(">10I", 0, 0, 0, 0, 0, 0, mode, 0, 0, 0) + bytes(20) + struct.pack(">H", flags)
    body += (b"\0" if version == 4 else b"") + name
    return body + (b"\0" if version == 4 else bytes(8 - len(body) % 8))


def index(*entries, extensions=b"", version=2):
    return b"DIRC" + struct.pack(">II", version, len(entries)) + b"".join(entries) + extensions + bytes(20)


def extension(name, data):
    return name + struct.pack(">I", len(data)) + data


@pytest.mark.parametrize(
    "name",
    [b"../x", b"a/../../x", b"/etc/x", b"a//x", b"./x", b"a/.", b".git/hooks/x", b"a/.GIT/config", b"sub/.git", b"a/.git./x",
     b"git~1/config", b".g\xe2\x80\x8cit/config", b"", b"a/", b".git::$INDEX_ALLOCATION/x"],
)  # fmt: skip
def test_a_path_that_leads_elsewhere(name):
    for version in (2, 4):
        assert index_fault(index(entry(b"a"), entry(name, version=version), version=version), 20).startswith(
            "git_index_"
        )
    assert index_fault(index(entry(name)), 20) == "git_index_path"


def test_a_directory_of_a_sparse_index():
    assert index_fault(index(entry(b"a/", mode=0o040000)), 20) == ""
    assert index_fault(index(entry(b"../", mode=0o040000)), 20) == "git_index_path"


EVIL = entry(b"../x")
BLOCKS = struct.pack(">I", 1)


@pytest.mark.parametrize(
    "data",
    [
        # git's threads take entries from where a table says, here out of another extension
        index(
            entry(b"a"), extensions=extension(b"none", EVIL) + extension(b"IEOT", BLOCKS + struct.pack(">II", 92, 1))
        ),
        index(entry(b"a"), extensions=extension(b"IEOT", BLOCKS + struct.pack(">II", 12, 2))),
        index(entry(b"a"), extensions=extension(b"IEOT", b"")),
        # where the extensions begin is said at a place near the end, in whatever that is a part of
        index(entry(b"a"), extensions=extension(b"none", extension(b"EOIE", struct.pack(">I", 12) + bytes(20)))),
        index(entry(b"a"), extensions=extension(b"link", bytes(20))),
        index(entry(b"a"), extensions=b"none\0\0\1\0"),
        index(entry(b"a"), extensions=b"xx"),
        index(entry(b"a\0/../x", flags=7)),
        index(entry(b"abc", flags=2)),
        index(entry(b"abc", flags=0xFFF)),
        index(entry(b"a"))[:-30],
        b"",
    ],
)
def test_what_git_would_read_in_another_way(data):
    assert index_fault(data, 20) == "git_index_unchecked"


@given(st.binary(max_size=120), st.integers(0, 200), st.sampled_from([2, 3, 4]))
@settings(max_examples=300)
def test_no_bytes_raise(junk, at, version):
    assert index_fault(junk, 20)
    whole = index(entry(b"a", version=version), entry(b"b/c", version=version), version=version)
    index_fault(whole[:at] + junk + whole[at + len(junk) :], 20)


def test_by_which_names_it_is_found():
    assert all(map(is_index, (b"index", b"sharedindex.12", b"INDEX", b"index.", b"ind\xe2\x80\x8cex")))
    assert not any(map(is_index, (b"index.lock", b"indexes", b"", b"\xff")))
