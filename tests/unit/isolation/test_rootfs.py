"""The reduced /etc, and files of our own making."""

import pytest

from saggar.isolation import rootfs
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
