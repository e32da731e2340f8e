"""As a new user would: a forge, a package index and a model server, each with a key that `saggar run` never lets in.

The cell's whole memory and file system are searched for the keys, from inside, as far as the cell can read.
"""

import base64
import hashlib
import http.server
import io
import json
import os
import socketserver
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from saggar.egress.ca_host import TaskCa

SRC = str(Path(__file__).resolve().parents[2] / "src")
MODEL_KEY = "sk-REALMODELKEY0123456789abcdef"
FORGE_KEY = "ghp_REALFORGEKEY0123456789abcdef"
INDEX_KEY = "pypi-REALINDEXKEY0123456789abcdef"
HOSTS = ("model.allowed.test", "forge.allowed.test", "index.allowed.test")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def get_request(self):
        conn, peer = super().get_request()
        conn.settimeout(30)
        return self.context.wrap_socket(conn, server_side=True, do_handshake_on_connect=False), peer

    def handle_error(self, request, client_address):
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def serve(self):
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        getattr(self, self.headers["Host"].split(".")[0])()

    do_GET = do_POST = serve

    def model(self):
        asked = json.loads(self.body())
        if self.headers.get("Authorization") != f"Bearer {MODEL_KEY}":
            self.answer(401, b"{}")
            return
        assert asked["stream"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for word in ("Hello", "from", MODEL_KEY, "there"):
            event = f"data: {json.dumps({'choices': [{'delta': {'content': word}}]})}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def index(self):
        self.body()
        if self.headers.get("Authorization") != "Basic " + base64.b64encode(f"__token__:{INDEX_KEY}".encode()).decode():
            self.answer(401, b"no")
        elif self.path == "/simple/greeting/":
            self.answer(
                200, b'<a href="/files/greeting-1.0-py3-none-any.whl">greeting-1.0-py3-none-any.whl</a>', "text/html"
            )
        else:
            self.answer(200, wheel(), "application/zip")

    def forge(self):
        data = self.body()
        if (
            self.headers.get("Authorization")
            != "Basic " + base64.b64encode(f"x-access-token:{FORGE_KEY}".encode()).decode()
        ):
            self.answer(401, b"no")
            return
        path, _, query = self.path.partition("?")
        env = {
            "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": self.server.root, "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path,
            "REQUEST_METHOD": self.command, "QUERY_STRING": query, "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "REMOTE_USER": "me", "CONTENT_LENGTH": str(len(data)), "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }  # fmt: skip
        done = subprocess.run(["git", "http-backend"], input=data, env=env, capture_output=True, check=True)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.answer(int(fields.pop("Status", "200 OK").split()[0]), body, fields["Content-Type"])


def wheel():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        files = {
            "greeting.py": "print('greetings')\n",
            "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
            "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = ""
        for name, text in files.items():
            z.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(text)}\n"
        z.writestr("greeting-1.0.dist-info/RECORD", record + "greeting-1.0.dist-info/RECORD,,\n")
    return out.getvalue()


@pytest.fixture
def server(place):
    ca = TaskCa("upstream", time.time())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    contexts = {}
    for host in HOSTS:
        certificate, key = ca.leaf(host)
        with open(f"{place}/{host}.pem", "w") as f:
            f.write(certificate + key)
        contexts[host] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        contexts[host].load_cert_chain(f"{place}/{host}.pem")
    context.sni_callback = lambda sock, name, _: setattr(sock, "context", contexts[name])
    with open(f"{place}/upstream.pem", "w") as f:
        f.write(ca.pem)
    server = Server(("127.0.0.1", 0), Handler)
    server.context = context
    server.seen = []
    server.root = f"{place}/forge"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(place, workspace, server):
    port = server.server_address[1]
    http_parts = {
        "model.allowed.test": 'profile = "openai", credential = { source = "env:MODEL_KEY" }',
        "forge.allowed.test": 'profile = { name = "github", owner = "acme", repo = "widget" }, credential = { source = "file:PLACE/forge-key" }'.replace("PLACE", place),
        "index.allowed.test": 'methods = ["GET"], credential = { source = "env:INDEX_KEY", kind = "basic", user = "__token__", require = false }',
    }  # fmt: skip
    text = "".join(
        f'[[egress.allow]]\nhost = "{host}"\nid = "{host.split(".")[0]}"\nconnect_to = "127.0.0.1:{port}"\n'
        f'http = {{ ca = "{place}/upstream.pem", {part} }}\n'
        for host, part in http_parts.items()
    )
    Path(place, "policy.toml").write_text(text)
    key = Path(place, "forge-key")
    key.touch(mode=0o600)
    key.write_text(FORGE_KEY + "\n")
    env = {
        "PATH": os.environ["PATH"], "HOME": place, "PYTHONPATH": SRC, "SAGGAR_STATE_DIR": f"{place}/state",
        "MODEL_KEY": MODEL_KEY, "INDEX_KEY": INDEX_KEY,
    }  # fmt: skip

    def call(*command):
        return subprocess.run(
            [sys.executable, "-m", "saggar", "run", "--policy", f"{place}/policy.toml", "--ask", "hold", "--", *command],
            cwd=workspace, env=env, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip

    return call


def keys_in(text):
    return [k for k in (MODEL_KEY, FORGE_KEY, INDEX_KEY) if k in text]


CHAT = """
import json, os, urllib.request
body = json.dumps({"model": "m", "stream": True, "messages": []}).encode()
request = urllib.request.Request("https://model.allowed.test/v1/chat/completions", body,
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"})
words = []
for line in urllib.request.urlopen(request):
    if line.startswith(b"data: "):
        words.append(json.loads(line[6:])["choices"][0]["delta"]["content"])
print(" ".join(words))
"""


def test_model_client_streams_with_a_placeholder(run, server):
    done = run("/usr/bin/python3", "-c", CHAT)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[:2] == ["Hello", "from"]
    assert words[-1] == "there"
    assert keys_in(done.stdout + done.stderr) == []
    assert words[2].startswith("sk-")
    assert server.seen[0][2]["authorization"] == f"Bearer {MODEL_KEY}"


PUSH = """
set -e
git clone -q https://forge.allowed.test/acme/widget.git /tmp/w
cd /tmp/w
echo more > file
git add file
git -c user.name=a -c user.email=a@b.test commit -qm more
git push -q origin HEAD:main
git push -q https://forge.allowed.test/acme/other.git HEAD:main && echo "pushed elsewhere" || echo refused
"""


@pytest.mark.requires_program("git")
def test_git_push_to_the_pinned_repository_alone(run, server, place):
    for name in ("widget", "other"):
        bare = f"{place}/forge/acme/{name}.git"
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", bare], check=True)
        subprocess.run(["git", "-C", bare, "config", "http.receivepack", "true"], check=True)
    done = run("sh", "-c", PUSH)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "refused"
    log = subprocess.run(
        ["git", "-C", f"{place}/forge/acme/widget.git", "log", "--format=%s", "main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert log.stdout == "more\n"
    assert not any("/acme/other" in path for _, path, _ in server.seen)
    assert keys_in(done.stdout + done.stderr) == []


def test_pip_installs_from_a_private_index(run):
    if subprocess.run(["/usr/bin/python3", "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("no pip for the system's Python on this host")
    script = (
        "/usr/bin/python3 -m pip install -q --disable-pip-version-check --target /tmp/t"
        " --index-url https://index.allowed.test/simple greeting && PYTHONPATH=/tmp/t /usr/bin/python3 -c 'import greeting'"
    )
    done = run("sh", "-c", script)
    assert done.stdout.strip() == "greetings", done.stderr
    assert keys_in(done.stdout + done.stderr) == []


SEARCH = r"""
import os, sys
needles = [bytes.fromhex(h) for h in sys.argv[1:]]
places, size = [], 0
def look(place, data):
    for n in needles:
        # the needle itself stands in this process as bytes: argv holds it in hex only
        if n in data:
            places.append(place)
me = str(os.getpid())
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline"):
        try:
            look(f"/proc/{pid}/{name}", open(f"/proc/{pid}/{name}", "rb").read())
        except OSError:
            pass
    if pid == me:
        continue
    try:
        maps = open(f"/proc/{pid}/maps").read().splitlines()
        mem = open(f"/proc/{pid}/mem", "rb", 0)
    except OSError:
        continue
    for line in maps:
        start, _, end = line.split()[0].partition("-")
        try:
            mem.seek(int(start, 16))
            data = mem.read(int(end, 16) - int(start, 16))
        except (OSError, OverflowError, ValueError):
            continue
        size += len(data)
        look(f"memory of {pid}", data)
for top in ("/home", "/tmp", "/run", "/etc", "/dev/shm", "/var", os.getcwd()):
    for base, _, names in os.walk(top):
        for name in names:
            path = os.path.join(base, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 1 << 24:
                    look(path, open(path, "rb").read())
            except OSError:
                pass
print(size > 1 << 20, sorted(set(places)))
"""


def test_no_key_anywhere_in_the_cell(run, server):
    """After a client used the model, while it still lives: its memory, every file, every environment."""
    script = CHAT + "import time, sys; sys.stdout.flush(); time.sleep(60)\n"
    needles = " ".join(k.encode().hex() for k in (MODEL_KEY, FORGE_KEY, INDEX_KEY))
    shell = (
        f"/usr/bin/python3 -c '{script}' > /tmp/said & client=$!\n"
        "for i in $(seq 200); do grep -q there /tmp/said && break; sleep 0.1; done\n"
        f"/usr/bin/python3 -c '{SEARCH.replace(chr(39), chr(34))}' {needles}; kill $client"
    )
    done = run("sh", "-c", shell)
    assert done.stdout.strip() == "True []", done.stdout + done.stderr
    assert server.seen[0][2]["authorization"] == f"Bearer {MODEL_KEY}"


def test_audit_log_names_the_credential_and_holds_no_key(run, place):
    run("/usr/bin/python3", "-c", CHAT)
    run("curl", "-s", "-H", "Authorization: Bearer attackers-own-key", "https://model.allowed.test/v1/models")
    logs = [p.read_text() for p in Path(place, "state", "runs").glob("*/audit.jsonl")]
    assert keys_in("".join(logs)) == []
    records = [json.loads(line) for text in logs for line in text.splitlines()]
    # the command's own words are on record, what it sent is not
    assert "attackers-own-key" not in json.dumps([r for r in records if r["kind"] != "run.start"])
    allowed = next(r for r in records if r["reason"] == "rule_allows")
    assert (allowed["detail"]["credential"], allowed["rule"]) == ("model", "openai.infer")
    assert next(r for r in records if r["reason"] == "foreign_credential")["detail"]["alert"] is True


def test_a_held_request_waits_for_the_operators_word(run, server, place):
    policy = Path(place, "policy.toml")
    text = policy.read_text().replace('profile = "openai",', 'rules = [{ effect = "ask", methods = ["POST"] }],')
    policy.write_text(text)
    box = []
    thread = threading.Thread(
        target=lambda: box.append(run("/usr/bin/python3", "-c", CHAT.replace("OPENAI_API_KEY", "KEY")))
    )
    policy.write_text(text.replace('source = "env:MODEL_KEY"', 'source = "env:MODEL_KEY", env = "KEY"'))
    thread.start()
    env = {"PATH": os.environ["PATH"], "HOME": place, "PYTHONPATH": SRC, "SAGGAR_STATE_DIR": f"{place}/state"}

    def saggar(*words):
        return subprocess.run(
            [sys.executable, "-m", "saggar", *words], env=env, capture_output=True, text=True, check=False
        )

    deadline = time.monotonic() + 30
    while not (held := saggar("egress", "held").stdout):
        assert time.monotonic() < deadline, box
    number, where, path, *rule = held.split()
    assert (where, path) == ("POST", "model.allowed.test:443/v1/chat/completions")
    assert rule == ["model.rules[0]", "(/**)"]
    assert server.seen == []
    assert "no request" in saggar("egress", "approve", "nonsense").stderr
    assert saggar("egress", "approve", number).stdout == f"approved {number}\n"
    thread.join(30)
    assert box[0].returncode == 0, box[0].stderr
    assert box[0].stdout.startswith("Hello from")
    assert "waits for your word" in box[0].stderr
    logs = "".join(p.read_text() for p in Path(place, "state", "runs").glob("*/audit.jsonl"))
    kinds = [json.loads(line)["kind"] for line in logs.splitlines()]
    assert kinds.index("egress.ask") < kinds.index("approval.answer")
