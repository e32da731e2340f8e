"""Flip, drop and swap every line of some modules, and see whether their tests notice.

    python scripts/mutate.py [--jobs 1] [--list] [MODULE...]

One mutant at a time: the mutated source is what `import` finds in a forked child, the child runs the module's tests and
stops at the first failure. A mutant that no test notices is printed, and the exit code is 1, unless `EQUIVALENT` says
why it changes nothing. No file is written.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import io
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
sys.path.insert(0, os.path.join(ROOT, "src"))

#: module to the tests that must notice
MODULES = {
    "saggar.capability.rule": ["tests/unit/capability/test_rules.py"],
    "saggar.capability.rules": ["tests/unit/capability/test_rules.py"],
    "saggar.capability.rule_check": ["tests/unit/capability/test_rules.py"],
    "saggar.capability.builtin": ["tests/unit/capability/test_rules.py"],
    "saggar.capability.narrower": ["tests/conformance/test_vectors.py", "tests/unit/capability/test_constraint.py"],
    "saggar.capability.verify": ["tests/unit/capability/test_token.py"],
    "saggar.capability.budget": ["tests/unit/capability/test_gateway.py"],
    "saggar.capability.steps": ["tests/unit/capability/test_gateway.py", "tests/unit/approval"],
    "saggar.core.hostname": ["tests/unit/core/test_hostname.py"],
    "saggar.core.idna": ["tests/unit/core/test_hostname.py"],
    "saggar.audit.chain": ["tests/unit/audit/test_sink_host.py"],
    "saggar.audit.verify": ["tests/unit/audit/test_verify.py", "tests/unit/audit/test_sink_host.py"],
    "saggar.policy.rules": ["tests/unit/policy/test_load.py", "tests/unit/policy/test_flags.py"],
    "saggar.policy.flags": ["tests/unit/policy/test_flags.py"],
    "saggar.policy.values": ["tests/unit/policy/test_load.py", "tests/unit/policy/test_flags.py"],
}

#: (module, mutant as printed, why no test can notice)
EQUIVALENT: set[tuple[str, str]] = set()
TIMEOUT_S = 60

COMPARE = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
NAMES = {"ALLOW": "DENY", "DENY": "ALLOW", "ASK": "ALLOW", "any": "all", "all": "any", "max": "min", "min": "max"}


@dataclass(frozen=True, slots=True)
class Mutant:
    module: str
    line: int
    what: str
    source: str


def mutants(module: str, source: str) -> Iterator[Mutant]:
    tree = ast.parse(source)
    count = sum(1 for _ in _changes(tree))
    for index in range(count):
        fresh = ast.parse(source)
        for i, (node, what, change) in enumerate(_changes(fresh)):
            if i == index:
                before = ast.unparse(node)[:90]
                change()
                yield Mutant(module, getattr(node, "lineno", 0), f"{what}: {before}", ast.unparse(fresh))
                break


def _changes(tree: ast.AST):
    """(node, description, function that makes the change) for every mutation of the tree, in a fixed order."""
    skip = {id(n) for parent in ast.walk(tree) for n in _not_mutated(parent)}
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            for i, node in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(node, ast.AST) and id(node) not in skip:
                    yield from _of(parent, name, i, node)


def _not_mutated(node: ast.AST) -> Iterator[ast.AST]:
    """Messages, annotations and what runs for type checkers only."""
    if isinstance(node, ast.JoinedStr):
        yield from ast.walk(node)
    if isinstance(node, ast.Raise):
        yield from (n for n in ast.walk(node) if n is not node)
    if isinstance(node, ast.arg) and node.annotation:
        yield from ast.walk(node.annotation)
    if isinstance(node, ast.AnnAssign):
        yield from ast.walk(node.annotation)
    if isinstance(node, ast.FunctionDef):
        yield from (n for d in node.decorator_list for n in ast.walk(d))
        if node.returns:
            yield from ast.walk(node.returns)
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        yield from ast.walk(node)
    if isinstance(node, ast.ClassDef):
        yield from (n for d in [*node.decorator_list, *node.bases] for n in ast.walk(d))
        if any(isinstance(b, ast.Name) and b.id == "Protocol" for b in node.bases):
            yield from ast.walk(node)


def _of(parent: ast.AST, name: str, i: int | None, node: ast.AST):
    def put(new: ast.AST):
        def change() -> None:
            ast.copy_location(new, node)
            ast.fix_missing_locations(new)
            if i is None:
                setattr(parent, name, new)
            else:
                getattr(parent, name)[i] = new

        return change

    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARE:
        flipped = copy.deepcopy(node)
        flipped.ops[0] = COMPARE[type(node.ops[0])]()
        yield node, "flip comparison", put(flipped)
    if isinstance(node, ast.BoolOp):
        other = copy.deepcopy(node)
        other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, "swap and/or", put(other)
        for k in range(len(node.values)):
            rest = [v for j, v in enumerate(node.values) if j != k]
            yield node, f"drop operand {k}", put(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, "drop not", put(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield node, "flip constant", put(ast.Constant(not node.value))
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in NAMES:
        yield node, "swap name", put(ast.Name(NAMES[node.id], ast.Load()))
    if isinstance(node, ast.Call):
        plain = [a for a in node.args if not isinstance(a, ast.Starred)]
        if len(plain) == len(node.args) and len(node.args) >= 2 and ast.dump(node.args[0]) != ast.dump(node.args[1]):
            swapped = copy.deepcopy(node)
            swapped.args[0], swapped.args[1] = swapped.args[1], swapped.args[0]
            yield node, "swap arguments", put(swapped)
    if isinstance(node, ast.If | ast.IfExp):
        for truth in (True, False):
            fixed = copy.deepcopy(node)
            fixed.test = ast.Constant(truth)
            yield node, f"condition is {truth}", put(fixed)
    statement = isinstance(node, ast.Continue | ast.Raise | ast.Expr) and not isinstance(
        getattr(node, "value", None), ast.Constant
    )
    if statement and i is not None:
        yield node, "drop statement", put(ast.Pass())


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002
        if name == self.mutant.module:
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def exec_module(self, module):
        exec(compile(self.mutant.source, f"<{self.mutant.module}, mutated>", "exec"), module.__dict__)


def noticed(mutant: Mutant) -> bool:
    """Whether the module's tests fail on this mutant; a hang or a crash counts as noticed."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (TIMEOUT_S, TIMEOUT_S))
            code = _run(mutant)
        finally:
            os._exit(code)
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) != 0
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def _run(mutant: Mutant) -> int:
    sys.meta_path.insert(0, _Finder(mutant))
    import pytest

    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no"]
        return int(pytest.main([*words, *(os.path.join(ROOT, t) for t in MODULES[mutant.module])]))


def survivors(modules: list[str], report=print) -> list[Mutant]:
    # heavy and innocent modules are loaded once, before the forks
    import pytest  # noqa: F401

    out = []
    for module in modules:
        with open(os.path.join(ROOT, "src", *module.split(".")) + ".py") as f:
            found = list(mutants(module, f.read()))
        lived = [m for m in found if not noticed(m) and (m.module, m.what) not in EQUIVALENT]
        report(f"{module}: {len(found)} mutants, {len(found) - len(lived)} noticed, {len(lived)} not")
        for m in lived:
            report(f"  line {m.line}: {m.what}")
        out += lived
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("modules", nargs="*", default=list(MODULES), metavar="MODULE")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    args = parser.parse_args()
    os.chdir(ROOT)
    if args.list:
        for module in args.modules:
            with open(os.path.join(ROOT, "src", *module.split(".")) + ".py") as f:
                for m in mutants(module, f.read()):
                    print(f"{module}:{m.line}: {m.what}")
        return 0
    return 1 if survivors(args.modules) else 0


if __name__ == "__main__":
    raise SystemExit(main())
