"""What containment costs at the start: `saggar.run` against bubblewrap alone with the same namespaces and mounts, and the whole CLI.

    python bench/startup.py [--rounds N] [--json]

One interleaved run, medians. Printed as ratios and differences, because this machine's own speed changes from minute to minute:

- `run/bwrap`: `saggar.run(["/bin/true"])` with a policy and listeners, over bubblewrap alone (goal 1.3 cold)
- `run prepared/bwrap`: the same with a network namespace made ahead of time and never used (where the API offers it)
- `cli - run`: `saggar run -- true` as a whole process, minus the same (goal 120 ms, stretch 80)
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

import saggar
from saggar.isolation.bwrap_argv import STAGE
from saggar.policy.model import EgressPolicy, EgressRule, Policy, WorkspacePolicy
from saggar.runtime.prepare_host import Options, Prepared, Session

TRUE = "/bin/true"


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
            request, _ = prepared.request((0, 1, 2))
        finally:
            prepared.abandon()
        self.program = prepared.session.bwrap.path
        self.blobs = request["blobs"]
        self.seccomp = _filter()
        self.workspace, self.scratch = workspace, scratch
        self.grants = [g["path"] for g in request["grants"]]
        self.size = request["scratch_bytes"]
        self.options = request["options"]
        self.round = 0

    def argv(self) -> tuple[list[str], list[int]]:
        self.round += 1
        fds: list[int] = []
        out = [self.program, "--unshare-net"]
        words = iter(self.options)
        for word in words:
            if word in ("--json-status-fd", "--seccomp"):
                next(words)
                if word == "--seccomp":
                    fds.append(_memfd(self.seccomp))
                    out += [word, str(fds[-1])]
            elif isinstance(word, int):
                fds.append(_memfd(self.blobs[word]))
                out.append(str(fds[-1]))
            elif word in ("--bind", "--ro-bind"):
                out += self._bind(word, next(words), next(words))
            else:
                out.append(word)
        return [*out, "--", TRUE], fds

    def _bind(self, option: str, source: str, target: str) -> list[str]:
        if source == f"{STAGE}/ws/workspace":
            base = os.path.join(self.scratch, str(self.round))
            os.makedirs(base + "/upper")
            os.mkdir(base + "/work")
            return ["--overlay-src", self.workspace, "--overlay", base + "/upper", base + "/work", target]
        if source.startswith(f"{STAGE}/m/"):
            return [option, self.grants[int(source.rsplit("/", 1)[1])], target]
        if source.startswith(f"{STAGE}/"):
            return ["--size", str(self.size), "--tmpfs", target]
        return [option, source, target]

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


def _filter() -> bytes:
    from saggar.isolation.seccomp import build_filter

    return build_filter(os.uname().machine)


def _memfd(content: bytes) -> int:
    fd = os.memfd_create("bench", 0)
    os.write(fd, content)
    os.lseek(fd, 0, 0)
    return fd


def run_api(loop: asyncio.AbstractEventLoop, chosen: Policy) -> float:
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
            "saggar.run": lambda: run_api(loop, chosen),
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
    ratio = statistics.median(a / b for a, b in zip(times["saggar.run"], times["bwrap"], strict=True))
    figures = {
        "ms": {name: round(value, 2) for name, value in ms.items()},
        "run/bwrap": round(ratio, 3),
        "cli-run_ms": round(ms["saggar run"] - ms["saggar.run"], 1),
        "cli-python_ms": round(ms["saggar run"] - ms["python"], 1),
    }
    if "--json" in sys.argv:
        print(json.dumps(figures))
        return
    for name, value in figures["ms"].items():
        print(f"{name:<16} {value:8.2f} ms (median of {len(times[name])})")
    print(f"saggar.run / bwrap alone: {figures['run/bwrap']} (goal 1.3)")
    print(f"saggar run - saggar.run:  {figures['cli-run_ms']} ms (goal 120, stretch 80)")


if __name__ == "__main__":
    main()
