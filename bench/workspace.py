"""What a copy-on-write workspace costs: git status, npm ci of many small files, and plain small-file work, against native.

    python bench/workspace.py [--rounds 5] [--files 20000] [--only git,git1000,npm,files] [--layer disk,memory,overlay,default]

Rounds are interleaved (native, cell, native, cell, ...), the medians and their ratios printed as JSON lines. Inside the cell the
work times itself, so the cell's own start (measured elsewhere) is not in these numbers. Goals: git status first call 3.5,
steady 1.3; npm ci 1.3.

The cells of `disk` and `memory` have as many CPUs as native (2), `default` has the default limits (1 CPU, so git's second thread
has nowhere to run). `overlay`, for root, is no cell at all: the kernel's overlay over the same tree, outside every namespace but
one for the mount. What it costs no copy-on-write workspace of this kind can save.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile

SRC = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")

GIT = """
import json, resource, subprocess, time
times = []
def cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
for i in range(12):
    if i == 2:
        before = cpu()
    t = time.perf_counter()
    subprocess.run(["git", "status", "--porcelain"], check=True, stdout=subprocess.DEVNULL)
    times.append(time.perf_counter() - t)
print(json.dumps({"first": times[0], "second": times[1], "steady": sorted(times[2:])[5], "steady_cpu": (cpu() - before) / 10}))
"""

NPM = """
import json, shutil, subprocess, time
shutil.rmtree("node_modules", ignore_errors=True)
t = time.perf_counter()
subprocess.run(["npm", "ci", "--offline", "--no-audit", "--no-fund", "--ignore-scripts", "--cache", "/tmp/npm-cache"], check=True,
               stdout=subprocess.DEVNULL)
print(json.dumps({"npm_ci": time.perf_counter() - t}))
"""

FILES = """
import json, os, shutil, sys, time
N = int(sys.argv[1])
result = {}
def timed(name, f):
    t = time.perf_counter(); f(); result[name] = time.perf_counter() - t
def write():
    for d in range(N // 100):
        os.makedirs(f"out/{d}")
        for i in range(100):
            with open(f"out/{d}/{i}", "w") as f:
                f.write("x" * 500)
def read():
    for base, _, names in os.walk("out"):
        for n in names:
            with open(f"{base}/{n}") as f:
                f.read()
def stat_lower():
    for base, _, names in os.walk("src"):
        for n in names:
            os.stat(f"{base}/{n}")
def change_lower():
    for i, (base, _, names) in enumerate(os.walk("src")):
        for n in names[:5]:
            with open(f"{base}/{n}", "a") as f:
                f.write("y")
timed("write", write)
timed("read", read)
timed("rename", lambda: [os.rename(f"out/{d}/{i}", f"out/{d}/r{i}") for d in range(N // 100) for i in range(0, 100, 10)])
timed("remove", lambda: shutil.rmtree("out"))
timed("stat_lower", stat_lower)
timed("change_lower", change_lower)
timed("remove_lower", lambda: shutil.rmtree("src"))
print(json.dumps(result))
"""


def sh(*argv: str, cwd: str) -> None:
    env = os.environ | {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    subprocess.run(argv, cwd=cwd, check=True, env=env, stdout=subprocess.DEVNULL)


def make_repo(path: str, files: int) -> None:
    for d in range(files // 50):
        os.makedirs(f"{path}/src/{d % 40}/{d}")
        for i in range(50):
            with open(f"{path}/src/{d % 40}/{d}/{i}.py", "w", encoding="ascii") as file:
                file.write(f"# {d} {i}\n" * 20)
    sh("git", "init", "-q", ".", cwd=path)
    sh("git", "add", ".", cwd=path)
    sh("git", "-c", "gc.auto=0", "-c", "user.name=b", "-c", "user.email=b@b.test", "commit", "-qm", "first", cwd=path)


def make_repo_of_1000(path: str, files: int) -> None:
    """As `make_repo`, but owned by the uid that a root caller's cell has inside: git's index then fits."""
    make_repo(path, files)
    sh("chown", "-R", "1000:1000", path, cwd="/")


def make_npm(path: str, files: int) -> None:
    packages: dict[str, object] = {}
    wanted = {}
    os.makedirs(f"{path}/packages")
    for p in range(files // 500):
        name = f"p{p}"
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            add(tar, "package/package.json", json.dumps({"name": name, "version": "1.0.0"}).encode())
            for i in range(499):
                add(tar, f"package/lib/{i % 20}/{i}.js", f"module.exports = {i};\n".encode() * 20)
        data = buffer.getvalue()
        with open(f"{path}/packages/{name}.tgz", "wb") as file:
            file.write(data)
        digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
        spec = f"file:packages/{name}.tgz"
        wanted[name] = spec
        packages[f"node_modules/{name}"] = {"version": "1.0.0", "resolved": spec, "integrity": f"sha512-{digest}"}
    root = {"name": "app", "version": "1.0.0", "dependencies": wanted}
    lock = {
        "name": "app",
        "version": "1.0.0",
        "lockfileVersion": 3,
        "requires": True,
        "packages": {"": root, **packages},
    }
    for name, value in (("package.json", root), ("package-lock.json", lock)):
        with open(f"{path}/{name}", "w", encoding="ascii") as file:
            json.dump(value, file)


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def inner(argv: list[str], cwd: str, prefix: list[str], env: dict[str, str]) -> dict[str, float]:
    done = subprocess.run([*prefix, *argv], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{prefix} {argv[:3]}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


OVERLAY = """
rm -rf "$0" && mkdir -p "$0/upper" "$0/work" && chown --reference=. "$0/upper" &&
mount -t overlay overlay -o "volatile,userxattr,lowerdir=$PWD,upperdir=$0/upper,workdir=$0/work" "$PWD" && cd "$PWD" && exec "$@"
"""


def prefix_of(variant: str, base: str) -> list[str]:
    """What stands before the command to run it as `variant`."""
    if variant == "overlay":
        return ["unshare", "-m", "sh", "-c", OVERLAY, f"{base}/overlay"]
    run = [sys.executable, "-m", "saggar", "run", "--quiet"]
    if variant == "default":
        return [*run, "--"]
    policy = f"{base}/{variant}.toml"
    require = "enforced" if variant == "memory" else "any"
    with open(policy, "w", encoding="ascii") as file:
        file.write(f'[limits]\nmemory = "4GiB"\ncpus = 2\ntasks = 1000\ndisk = "4GiB"\nrequire = "{require}"\n')
    return [*run, "--policy", policy, "--"]


def measure(name: str, make, script: str, args: list[str], options: argparse.Namespace, base: str) -> None:
    python = "/usr/bin/python3"
    template = f"{base}/{name}-template"
    os.mkdir(template)
    make(template, options.files)
    env = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG")}
    env |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    env |= {
        "HOME": f"{base}/home",
        "SAGGAR_STATE_DIR": f"{base}/state",
        "PYTHONPATH": SRC,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    os.makedirs(f"{base}/home", exist_ok=True)
    variants = {"native": []} | {v: prefix_of(v, base) for v in options.layer.split(",")}
    results: dict[str, list[dict[str, float]]] = {v: [] for v in variants}
    # git compares ctimes with its index: one copy that stays where it is serves all; native work in it is undone by hand
    for number in range(options.rounds):
        for variant, prefix in variants.items():
            place = f"{base}/{name}"
            if not name.startswith("git") or not os.path.exists(place):
                shutil.rmtree(place, ignore_errors=True)
                shutil.copytree(template, place, symlinks=True)
                if name == "git1000":
                    sh("chown", "-R", "1000:1000", place, cwd="/")
                if name.startswith("git"):
                    sh("git", "update-index", "-q", "--refresh", cwd=place)
            subprocess.run(
                ["git", "status", "--porcelain"],
                cwd=place,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
            found = inner([python, "-c", script, *args], place, prefix, env)
            if options.verbose:
                sys.stderr.write(f"{name} {number} {variant} {found}\n")
            results[variant].append(found)
        if options.keep is False:
            subprocess.run(
                [sys.executable, "-m", "saggar", "discard", "--all"], env=env, check=True, stdout=subprocess.DEVNULL
            )
    for key in results["native"][0]:
        medians = {v: statistics.median(r[key] for r in rs) for v, rs in results.items()}
        line = {"bench": f"workspace.{name}.{key}", "rounds": options.rounds, "files": options.files}
        line |= {f"{v}_ms": round(m * 1000, 2) for v, m in medians.items()}
        line |= {f"{v}_ratio": round(m / medians["native"], 3) for v, m in medians.items() if v != "native"}
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=20000)
    parser.add_argument("--only", default="git,npm,files")
    parser.add_argument("--layer", default="disk")
    parser.add_argument("--place", default="/var/tmp", help="where the workspace and the layer lie")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    base = tempfile.mkdtemp(prefix="saggar-bench-", dir=options.place)
    os.chmod(base, 0o755)
    try:
        table = {
            "git": (make_repo, GIT, []),
            "git1000": (make_repo_of_1000, GIT, []),
            "npm": (make_npm, NPM, []),
            "files": (make_repo, FILES, [str(options.files)]),
        }
        for name in options.only.split(","):
            make, script, args = table[name]
            measure(name, make, script, args, options, base)
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
