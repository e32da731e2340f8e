"""Import rules that import-linter cannot say: pure modules by name, and what `saggar run` may load."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

import saggar

SOURCE = os.path.dirname(saggar.__file__)
#: everything in here is pure, unless its name ends in `_host`
PURE_LAYERS = ("core", "policy", "audit", "isolation", "egress", "capability", "plan")
IMPURE = {
    "asyncio", "concurrent", "ctypes", "fcntl", "http.client", "http.server", "mmap", "multiprocessing", "random", "resource", "secrets", "select",
    "selectors", "shutil", "signal", "socket", "socketserver", "ssl", "subprocess", "tempfile", "threading", "urllib.request", "uvloop",
}  # fmt: skip
#: what calls tools has to await and to count under a lock, and `memmem` is the C library's; none of it is input or output
EXCEPTIONS = {"capability/gateway.py": {"asyncio", "threading"}, "egress/find.py": {"ctypes"}}


def modules():
    for layer in PURE_LAYERS:
        for base, _, names in os.walk(f"{SOURCE}/{layer}"):
            for name in sorted(names):
                if name.endswith(".py") and not name.endswith("_host.py"):
                    yield os.path.join(base, name)


def imported(path):
    with open(path) as f:
        tree = ast.parse(f.read())
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", list(modules()), ids=lambda p: os.path.relpath(p, SOURCE))
def test_pure_modules_import_nothing_that_does_io(path):
    assert IMPURE & set(imported(path)) <= EXCEPTIONS.get(os.path.relpath(path, SOURCE), set())


#: all that one `saggar run` loads of the standard library beyond the bare interpreter's own
RUN_PATH = {
    "__future__", "_ctypes", "_json", "_sha256", "_sha2", "_socket", "_struct", "atexit", "errno",
    "fcntl", "resource", "select", "signal", "struct", "termios",
}  # fmt: skip


def test_run_loads_only_what_it_needs(tmp_path):
    """Another module costs every start; `re` alone is 6 ms of some 80."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from saggar.cli.main import main; main(['run', '--', 'true'])"
    environment = {"SAGGAR_STATE_DIR": str(tmp_path / "state"), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [sys.executable, "-I", "-X", "importtime", "-c"]
    bare = subprocess.run([*command, "pass"], env=environment, capture_output=True, text=True, check=True)
    work = tmp_path / "work"
    work.mkdir()
    full = subprocess.run(
        [*command, code, os.path.dirname(SOURCE)], env=environment, capture_output=True, text=True, check=True, cwd=work
    )
    loaded = names_of(full.stderr) - names_of(bare.stderr)
    assert "saggar.runtime.run_host" in loaded
    assert {n for n in loaded if not n.startswith("saggar")} <= RUN_PATH


def names_of(report):
    return {line.rpartition("|")[2].strip() for line in report.splitlines() if line.startswith("import time:")}
