"""The tools that people really run, unmodified, through `saggar run` under deny-all with an allowlist: git clone, curl, pip install,
npm install, node and java against loopback services, on the tunnel path. As the caller who runs the tests: root and ordinary users.

The services speak TLS with a certificate of the tests' own CA, which stands for a public one: it is shown read-only and named in
the variable that each tool has for that.
"""

import base64
import functools
import hashlib
import http.server
import io
import json
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from saggar.testing.upstream import TestPki

SRC = str(Path(__file__).resolve().parents[2] / "src")
HOSTS = ("git.allowed.test", "index.allowed.test", "npm.allowed.test", "web.allowed.test")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def serve(self):
        self.server.seen.append((self.headers["Host"], self.command, self.path))
        data = self.body()
        getattr(self, self.headers["Host"].split(".")[0])(data)

    do_GET = do_POST = serve

    def git(self, data):
        path, _, query = self.path.partition("?")
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": self.server.root,
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "REQUEST_METHOD": self.command,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(data)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=data, env=env, capture_output=True, check=True)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.answer(int(fields.pop("Status", "200 OK").split()[0]), body, fields.get("Content-Type", "text/plain"))

    def index(self, _):
        if self.path == "/simple/greeting/":
            name = "greeting-1.0-py3-none-any.whl"
            self.answer(200, f'<a href="/files/{name}">{name}</a>'.encode(), "text/html")
        else:
            self.answer(200, wheel(), "application/zip")

    def npm(self, _):
        package = tarball()
        if self.path == "/greeting":
            digest = base64.b64encode(hashlib.sha512(package).digest()).decode()
            dist = {"tarball": "https://npm.allowed.test/greeting.tgz", "integrity": f"sha512-{digest}"}
            version = {"name": "greeting", "version": "1.0.0", "dist": dist}
            found = {"name": "greeting", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
            self.answer(200, json.dumps(found).encode(), "application/json")
        else:
            self.answer(200, package, "application/octet-stream")

    def web(self, _):
        self.answer(200, b"greetings\n", "text/plain")


def wheel():
    files = {
        "greeting.py": "print('greetings')\n",
        "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, text in files.items():
            z.writestr(name, text)
        z.writestr("greeting-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in files))
    return out.getvalue()


@functools.cache  # gzip writes the time into it: made twice it has two checksums
def tarball():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        files = {"package.json": '{"name": "greeting", "version": "1.0.0"}', "index.js": 'console.log("greetings")\n'}
        for name, text in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def get_request(self):
        connection, peer = super().get_request()
        connection.settimeout(30)
        return self.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), peer

    def handle_error(self, request, client_address):
        pass


@pytest.fixture
def pki(place):
    return TestPki(place, HOSTS)


@pytest.fixture
def server(place, pki):
    server = Server(("127.0.0.1", 0), Handler)
    server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.context.load_cert_chain(pki.chain_file)
    server.seen = []
    server.root = f"{place}/forge"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def run(place, workspace, server, pki):
    """Call `saggar run -- COMMAND`; gives the finished process and the JSON result."""
    os.chmod(pki.ca_file, 0o644)
    rules = "".join(
        f'[[egress.allow]]\nhost = "{host}"\nconnect_to = "127.0.0.1:{server.server_address[1]}"\n' for host in HOSTS
    )
    names = ("GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "npm_config_cafile")
    variables = "".join(f'{name} = "{pki.ca_file}"\n' for name in names)
    policy = Path(place, "policy.toml")
    policy.write_text(f'[isolation]\nread = ["{pki.ca_file}"]\n[environment.set]\n{variables}{rules}')
    env = {"PATH": os.environ["PATH"], "HOME": place, "PYTHONPATH": SRC, "SAGGAR_STATE_DIR": f"{place}/state"}

    def call(*command, flags=()):
        out = f"{place}/result.json"
        done = subprocess.run(
            [sys.executable, "-m", "saggar", "run", "--policy", policy, "--json", out, *flags, "--", *command],
            cwd=workspace,
            env=env,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        return done, json.loads(Path(out).read_text())

    return call


def decisions(result):
    records = [json.loads(line) for line in Path(result["audit_path"]).read_text().splitlines()]
    return [(r["effect"], r["reason"], r["detail"].get("host")) for r in records if r["kind"] == "egress.decision"]


def last_line(done):
    return done.stderr.splitlines()[-1]


@pytest.fixture
def forge(server):
    """A bare repository with one commit of a binary file that git cannot make small, and a branch."""
    path = f"{server.root}/acme/widget.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", path], check=True)
    data = hashlib.shake_256(b"widget").digest(3 << 20)
    stream = (
        b"commit refs/heads/main\ncommitter a <a@a.test> 0 +0000\ndata 4\none\n\nM 100644 inline kept\n"
        b"data %d\n%s\nreset refs/heads/side\nfrom refs/heads/main\n\n" % (len(data), data)
    )
    subprocess.run(["git", "-C", path, "fast-import", "--quiet"], input=stream, check=True)
    return path


CLONE = """
set -e
git clone -q https://git.allowed.test/acme/widget.git /tmp/w
cd /tmp/w
git log --format=%s
git branch -r --format='%(refname)'
sha256sum < kept
"""


@pytest.mark.requires_program("git")
def test_git_clone_over_https(run, server, forge):
    done, result = run("sh", "-c", CLONE)
    digest = hashlib.sha256(hashlib.shake_256(b"widget").digest(3 << 20)).hexdigest()
    lines = ["one", "refs/remotes/origin/HEAD", "refs/remotes/origin/main", "refs/remotes/origin/side", f"{digest}  -"]
    assert (done.stdout.splitlines(), done.stderr) == (lines, "")
    assert ("git.allowed.test", "POST", "/acme/widget.git/git-upload-pack") in server.seen
    assert set(decisions(result)) == {("allow", "listed", "git.allowed.test")}
    assert result["bytes_down"] > 3 << 20


@pytest.mark.requires_program("git")
def test_git_clone_into_the_workspace_comes_out_with_apply(run, forge, workspace, place):
    """`.git` of a clone is new to the workspace, so it is protected as a whole; the files are not. A line for each reason is enough."""
    done, result = run("git", "clone", "-q", "--depth", "1", "https://git.allowed.test/acme/widget.git", "w")
    assert (done.returncode, done.stderr) == (0, "")
    env = {"PATH": os.environ["PATH"], "HOME": place, "PYTHONPATH": SRC, "SAGGAR_STATE_DIR": f"{place}/state"}
    command = [sys.executable, "-m", "saggar", "apply", result["run_id"]]
    refused = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=workspace)
    assert (refused.returncode, os.listdir(workspace)) == (3, [])
    said = [line.split(" (protected")[0] for line in refused.stderr.splitlines()]
    assert said[0].startswith("saggar: refused `w/.git`: git_directory, with ")
    assert len(said) < 10
    subprocess.run([*command, "--skip-refused"], env=env, capture_output=True, check=False, cwd=workspace)
    assert Path(workspace, "w/kept").stat().st_size == 3 << 20
    assert os.listdir(f"{workspace}/w") == ["kept"]


REFUSED_REMOTES = [
    # what else was allowed, remote, what git says, reason, what the last line names
    ([], "https://evil.test/a.git", "Could not resolve host: evil.test", "host_not_listed", "evil.test"),
    (
        ["--allow", "good.test"],
        "https://x.good.test/a.git",
        "resolve host: x.good.test",
        "host_not_listed",
        "x.good.test",
    ),
    ([], "https://192.0.2.7/a.git", "unable to access 'https://192.0.2.7/a.git/'", "no_name", "192.0.2.7:443"),
    ([], "http://evil.test/a.git", "Could not resolve host: evil.test", "host_not_listed", "evil.test"),
    ([], "ssh://git@evil.test/a.git", "Could not read from remote repository", "host_not_listed", "evil.test"),
    ([], "git://evil.test/a.git", "unable to look up evil.test", "host_not_listed", "evil.test"),
]


@pytest.mark.requires_program("git", "ssh")
@pytest.mark.parametrize(
    ("flags", "remote", "text", "reason", "named"), REFUSED_REMOTES, ids=[r[1] for r in REFUSED_REMOTES]
)
def test_git_clone_of_a_remote_that_is_not_listed(run, flags, remote, text, reason, named):
    done, result = run("git", "clone", "-q", remote, "/tmp/w", flags=flags)
    assert done.returncode == 128
    assert text in done.stderr
    assert last_line(done) == f"saggar: refused {named} (saggar log {result['run_id']})"
    assert {r["reason"] for r in result["refusals"]} == {reason}


@pytest.mark.requires_program("curl")
def test_curl(run):
    done, result = run("curl", "-sS", "-m", "20", "https://web.allowed.test/a", "https://evil.test/b")
    assert done.stdout == "greetings\n"
    assert "curl: (6) Could not resolve host: evil.test" in done.stderr
    assert (done.returncode, last_line(done)) == (6, f"saggar: refused evil.test (saggar log {result['run_id']})")
    assert decisions(result) == [("allow", "listed", "web.allowed.test")]


def test_pip_install(run, server):
    if subprocess.run(["/usr/bin/python3", "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("no pip for the system's Python on this host")
    script = (
        "/usr/bin/python3 -m pip install -q --disable-pip-version-check --target out"
        " --index-url https://index.allowed.test/simple greeting && PYTHONPATH=out /usr/bin/python3 -c 'import greeting'"
    )
    done, result = run("sh", "-c", script)
    assert done.stdout == "greetings\n", done.stderr
    assert set(decisions(result)) == {("allow", "listed", "index.allowed.test")}


@pytest.mark.requires_program("npm", "node")
def test_npm_install_and_node(run, server):
    script = (
        "npm install --silent --no-audit --no-fund --registry https://npm.allowed.test greeting && node -e 'require(\"greeting\")'"
        " && node -e 'fetch(\"https://web.allowed.test/\").then(r => r.text()).then(t => process.stdout.write(t))'"
    )
    done, result = run("sh", "-c", script)
    assert done.stdout.endswith("greetings\ngreetings\n"), done.stdout + done.stderr
    assert ("npm.allowed.test", "GET", "/greeting.tgz") in server.seen
    assert {host for _, _, host in decisions(result)} == {"npm.allowed.test", "web.allowed.test"}


GET = """
import java.net.URI;
import java.net.http.*;

public class Get {
    public static void main(String[] arguments) throws Exception {
        var client = HttpClient.newHttpClient();
        for (var address : arguments) {
            try {
                var request = HttpRequest.newBuilder(URI.create(address)).build();
                System.out.print(client.send(request, HttpResponse.BodyHandlers.ofString()).body());
            } catch (java.io.IOException refused) {
                System.out.println(refused.getClass().getSimpleName());
            }
        }
    }
}
"""


@pytest.mark.requires_program("java", "javac", "keytool")
def test_java(run, place, workspace, pki):
    """A program compiled outside, run inside; the CA stands in a store of its own."""
    store = f"{workspace}/store"
    words = ["-importcert", "-noprompt", "-file", pki.ca_file, "-keystore", store, "-storepass", "changeit"]
    subprocess.run(["keytool", *words], check=True, capture_output=True)
    Path(workspace, "Get.java").write_text(GET)
    subprocess.run(["javac", "-d", workspace, f"{workspace}/Get.java"], check=True)
    trust = [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStorePassword=changeit"]
    done, result = run("java", *trust, "Get", "https://web.allowed.test/", "https://evil.test/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["greetings", "ConnectException"]
    assert decisions(result) == [("allow", "listed", "web.allowed.test")]
    assert last_line(done) == f"saggar: refused evil.test (saggar log {result['run_id']})"


ALLOCATE = """
import java.util.*;

public class Allocate {
    public static void main(String[] arguments) {
        var kept = new ArrayDeque<byte[]>();
        long total = 0;
        int keep = Integer.parseInt(arguments[0]);
        while (total < 4L << 30) {
            kept.add(new byte[1 << 20]);
            total += 1 << 20;
            if (kept.size() > keep) kept.removeFirst();
        }
        System.out.println(Runtime.getRuntime().maxMemory() >> 20);
    }
}
"""


@pytest.mark.requires_program("java", "javac")
def test_java_sizes_its_heap_by_the_cells_limit(run, workspace):
    """4 GiB of garbage in a cell of 1 GiB: with a heap sized by the machine the JVM lets it grow until the kernel ends it."""
    Path(workspace, "Allocate.java").write_text(ALLOCATE)
    subprocess.run(["javac", "-d", workspace, f"{workspace}/Allocate.java"], check=True)
    done, result = run("java", "-XX:+UseG1GC", "Allocate", "100")
    if result["limits"]["memory"]["held"] != "enforced":
        pytest.skip("no control group holds the memory limit of this caller")
    assert (done.returncode, done.stdout, done.stderr) == (0, "256\n", "")
    done, result = run("java", "Allocate", "3000")
    assert (result["cause"], done.returncode) == ("exit", 1)
    assert "java.lang.OutOfMemoryError: Java heap space" in done.stderr


@pytest.mark.requires_program("node")
def test_node_sizes_its_heap_by_the_cells_limit(run):
    script = "console.log(require('v8').getHeapStatistics().heap_size_limit < 2 ** 30)"
    done, result = run("node", "-e", script)
    if result["limits"]["memory"]["held"] != "enforced":
        pytest.skip("no control group holds the memory limit of this caller")
    assert done.stdout == "true\n"


REFUSED_TOOLS = {
    # program: what makes it ask a host, and the host
    "mvn": ("mvn -q -B dependency:get -Dartifact=junit:junit:4.13.2", "repo.maven.apache.org"),
    "go": (
        "printf 'module a\\ngo 1.18\\n' > go.mod; GOPROXY=https://proxy.golang.org go get rsc.io/quote@v1.5.2",
        "proxy.golang.org",
    ),
}


@pytest.mark.parametrize("program", REFUSED_TOOLS)
def test_what_a_tool_may_not_fetch_is_named(run, program):
    """And the tool itself starts: where its parts are on this host, the cell has them."""
    if not shutil.which(program):
        pytest.skip(f"no `{program}` on this host")
    script, host = REFUSED_TOOLS[program]
    done, result = run("sh", "-c", script)
    assert done.returncode != 0
    # Maven ends its colours without a newline
    assert "saggar: refused " in last_line(done), done.stderr
    assert host in [r["host"] for r in result["refusals"]], done.stderr
