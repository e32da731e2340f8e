"""The reduced /etc, and files of our own making."""

import os

import pytest

from saggar.isolation import rootfs, rootfs_host
from saggar.isolation.rootfs_host import System

#: what names the host, or may hold a secret
NEVER = (
    "shadow", "gshadow", "hostname", "machine-id", "fstab", "ssh", "sudoers", "pip.conf", "npmrc", "gitconfig", "wgetrc",
    "environment", "ssl/private", "resolv.conf", "hosts", "passwd",
)  # fmt: skip


@pytest.mark.parametrize("name", NEVER)
def test_nothing_of_the_host_that_could_tell(name):
    # I1, and by whole names: `ssl/certs` does not bring `ssl/private`
    assert name not in rootfs.ETC
    assert not any(name.startswith(entry + "/") for entry in rootfs.ETC)
    assert f"/etc/{name}" not in System().system


def test_our_own_files_are_the_same_on_every_host():
    # I2
    places = [place for place, _ in System().files]
    assert places[: len(rootfs.FILES)] == [place for place, _ in rootfs.FILES]
    assert len(places) == len(set(places))


def test_the_environment_is_four_variables():
    assert sorted(rootfs.environment()) == ["HOME", "LANG", "PATH", "TERM"]
    assert rootfs.environment(term="xterm")["TERM"] == "xterm"


def replace(etc):
    (etc / "new").write_bytes(b"new bundle")
    (etc / "new").rename(etc / "ssl/cert.pem")


CHANGES = {
    "a file is replaced by another of its size": lambda etc: replace(etc),
    "a file is written to": lambda etc: (etc / "services").write_text("other"),
    "a directory goes": lambda etc: (etc / "fonts").rmdir(),
    "a directory becomes a link": lambda etc: ((etc / "fonts").rmdir(), (etc / "fonts").symlink_to("ssl")),
    "a link leads elsewhere": lambda etc: ((etc / "localtime").unlink(), (etc / "localtime").symlink_to("b")),
    "a file comes": lambda etc: (etc / "shells").write_text("x"),
    "a version comes": lambda etc: (etc / "java-21-openjdk").mkdir(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_host_has_no_more_is_seen(tmp_path, monkeypatch, change):
    for name in ("ssl/certs", "fonts"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ssl/cert.pem").write_bytes(b"old bundle")
    (tmp_path / "services").write_text("s")
    (tmp_path / "localtime").symlink_to("a")
    monkeypatch.setattr(rootfs_host, "_NAMES", str(tmp_path))
    system = System()
    assert system.current()
    # a bound directory shows what it holds by itself
    (tmp_path / "ssl/certs/more.pem").write_text("x")
    os.utime(tmp_path / "fonts")
    assert system.current()
    CHANGES[change](tmp_path)
    assert not system.current()
    assert System().current()
