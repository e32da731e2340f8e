"""What containment costs at the start: `saggar.run` against bubblewrap alone with the same namespaces and mounts, and the whole CLI.

    python bench/startup.py [--rounds N] [--json]

One interleaved run, medians. Printed as ratios and differences, because this machine's own speed changes from minute to minute:

- `cold/bwrap`: `saggar.run(["/bin/true"])` with a policy and listeners, over bubblewrap alone, with nothing of the cell made ahead: no
  process, namespace, control group, listener or mount of it is there when the clock starts (goal 1.3). What is there is what the process's
  runs have in common: the launcher, and its template, which holds the generic files of every cell's root, read-only, and has run nothing
  (docs/decisions/0018-a-template-for-every-birth.md)
- `spare/bwrap`: the same as the API does it from a process's second run on: a child waits that has its namespaces, listeners and root
  and has run nothing (docs/decisions/0012-a-spare-child.md): the figure with a pre-made, never-used network namespace, and more
- `cli - cold`: `saggar run -- true` as a whole process, minus the cold run (goal 120 ms, stretch 80)
- beside them `sandlock` and `@anthropic-ai/sandbox-runtime`, where `SANDLOCK` and `SRT` name their commands
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial

import saggar
from saggar.isolation import rootfs
from saggar.isolation.bwrap_argv import HOSTNAME, SCRATCH
from saggar.isolation.rootfs_host import System
from saggar.isolation.seccomp import build_filter
from saggar.policy.model import EgressPolicy, EgressRule, Policy, WorkspacePolicy
from saggar.runtime import api_host
from saggar.runtime.caller_host import Options, Session
from saggar.runtime.prepare_host import Prepared

TRUE = "/bin/true"
#: until the launcher has cleared up after a run, and born a spare: some 10 ms
_SETTLES_S = 0.03


def policy(workspace: str) -> Policy:
    rules = (
        EgressRule(host="api.allowed.test", connect_to=("127.0.0.1", 9), id="one"),
        EgressRule(host="db.allowed.test", ports=(5432,), connect_to=("127.0.0.1", 9), id="two"),
    )
    return Policy(workspace=WorkspacePolicy(path=workspace), egress=EgressPolicy(allow=rules))


class Bubblewrap:
    """The same namespaces, files and mounts, asked of bubblewrap alone: what one would write by hand."""

    def __init__(self, chosen: Policy, workspace: str, scratch: str) -> None:
        prepared = Prepared(Session(os.environ), chosen, [TRUE], Options(cwd=workspace, timeout_s=None))
        try:
            self.request, _ = prepared.request((0, 1, 2))
        finally:
            prepared.abandon()
        self.program = prepared.session.bwrap.path
        self.system = System()
        self.seccomp = build_filter(os.uname().machine)
        self.workspace, self.scratch = workspace, scratch
        self.round = 0

    def argv(self) -> tuple[list[str], list[int]]:
        """Everything that the cell shows, as options; descriptors of the contents among them."""
        self.round += 1
        fds = [_memfd(self.seccomp)]
        uid, gid = self.request["user"]
        out = [self.program, "--unshare-net", "--unshare-user", "--uid", str(uid), "--gid", str(gid), "--unshare-pid"]
        out += ["--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", HOSTNAME, "--die-with-parent"]
        out += ["--seccomp", str(fds[0])]
        for path in self.system.system:
            out += ["--ro-bind", path, path]
        for target, place in self.system.links:
            out += ["--symlink", target, place]
        own = {**rootfs.accounts(uid, gid), rootfs.HOSTS_PLACE: self.request["hosts"]}
        for place, content in self.system.files:
            fds.append(_memfd(own.get(place, content)))
            out += ["--perms", "0444", "--file", str(fds[-1]), place]
        out += ["--dir", "/run", "--proc", "/proc"]
        for place in self.system.masked_files:
            out += ["--ro-bind", "/dev/null", place]
        for place in self.system.masked_directories:
            out += ["--tmpfs", place, "--remount-ro", place]
        out += ["--dev", "/dev"]
        for _, place, _ in SCRATCH:
            out += ["--size", str(self.request["scratch"][0]), "--tmpfs", place]
        for number, place, _ in self.request["binds"]:
            out += self._workspace(place) if number < 0 else ["--ro-bind", place, place]
        out += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", self.workspace]
        return [*out, "--", TRUE], fds

    def _workspace(self, place: str) -> list[str]:
        base = os.path.join(self.scratch, str(self.round))
        os.makedirs(base + "/upper")
        os.mkdir(base + "/work")
        return ["--overlay-src", self.workspace, "--overlay", base + "/upper", base + "/work", place]

    def __call__(self) -> float:
        argv, fds = self.argv()
        start = time.perf_counter()
        pid = os.posix_spawn(self.program, argv, {"PATH": "/usr/bin"})
        _, status = os.waitpid(pid, 0)
        took = time.perf_counter() - start
        for fd in fds:
            os.close(fd)
        if status:
            raise SystemExit(f"bubblewrap alone failed: {status}: {shlex.join(argv)}")
        return took


def _memfd(content: bytes) -> int:
    fd = os.memfd_create("bench", 0)
    os.write(fd, content)
    os.lseek(fd, 0, 0)
    return fd


def run_api(loop: asyncio.AbstractEventLoop, chosen: Policy, *, spare: bool) -> float:
    """One run after another of its kind: it finds a child waiting and leaves one, or neither."""
    api_host.Options = partial(Options, spare=spare)  # type: ignore[misc,assignment]
    loop.run_until_complete(saggar.run([TRUE], chosen))
    time.sleep(_SETTLES_S)
    start = time.perf_counter()
    result = loop.run_until_complete(saggar.run([TRUE], chosen))
    took = time.perf_counter() - start
    if result.exit_code != 0:
        raise SystemExit(f"saggar.run failed: {result}")
    return took


def run_process(argv: list[str], cwd: str) -> float:
    start = time.perf_counter()
    done = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    took = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{argv[0]} failed: {done.stderr.decode()[-300:]}")
    return took


def main() -> None:
    rounds = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 40
    with tempfile.TemporaryDirectory(prefix="saggar-bench-") as root:
        workspace = os.path.join(root, "workspace")
        os.mkdir(workspace)
        os.environ["SAGGAR_STATE_DIR"] = os.path.join(root, "state")
        chosen = policy(workspace)
        bubblewrap = Bubblewrap(chosen, workspace, os.path.join(root, "layers"))
        loop = asyncio.new_event_loop()
        file = os.path.join(root, "saggar.toml")
        with open(file, "w") as f:
            f.write('[[egress.allow]]\nhost = "api.allowed.test"\nconnect_to = "127.0.0.1:9"\n')
        cli = [sys.executable, "-P", "-m", "saggar", "run", "--policy", file, "--", "true"]
        cases = {
            "bwrap": bubblewrap,
            "run cold": lambda: run_api(loop, chosen, spare=False),
            "run with spare": lambda: run_api(loop, chosen, spare=True),
            "python": lambda: run_process([sys.executable, "-c", "pass"], workspace),
            "saggar run": lambda: run_process(cli, workspace),
        }
        for name, variable in (("sandlock", "SANDLOCK"), ("sandbox-runtime", "SRT")):
            if os.environ.get(variable):
                words = shlex.split(os.environ[variable])
                cases[name] = lambda words=words: run_process(words, workspace)
        times: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(rounds + 3):
            for name, case in cases.items():
                took = case()
                if number >= 3:  # the first rounds warm caches and start the launcher
                    times[name].append(took)
        loop.close()
        shutil.rmtree(os.path.join(root, "layers"), ignore_errors=True)
    report(times)


def report(times: dict[str, list[float]]) -> None:
    ms = {name: statistics.median(values) * 1000 for name, values in times.items()}

    def ratio(name: str) -> float:
        return round(statistics.median(a / b for a, b in zip(times[name], times["bwrap"], strict=True)), 3)

    figures = {
        "ms": {name: round(value, 2) for name, value in ms.items()},
        "cold/bwrap": ratio("run cold"),
        "spare/bwrap": ratio("run with spare"),
        "cli-cold_ms": round(ms["saggar run"] - ms["run cold"], 1),
        "cli-python_ms": round(ms["saggar run"] - ms["python"], 1),
    }
    if "--json" in sys.argv:
        print(json.dumps(figures))
        return
    for name, value in figures["ms"].items():
        print(f"{name:<16} {value:8.2f} ms (median of {len(times[name])})")
    print(f"saggar.run cold / bwrap alone:       {figures['cold/bwrap']} (goal 1.3)")
    print(f"saggar.run with spare / bwrap alone: {figures['spare/bwrap']}")
    print(f"saggar run - saggar.run cold:        {figures['cli-cold_ms']} ms (goal 120, stretch 80)")


if __name__ == "__main__":
    main()
