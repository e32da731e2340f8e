"""The model's key is the broker's: a TLS model on loopback, both message formats, the worker in its cell.

The client that runs in the cell is the shipped one. Where the cell is searched, it first does its work, then a second
process reads all of its memory, environment and files.
"""

from __future__ import annotations

import json
import ssl
import time

import pytest

from saggar.core.tool import TypeSpec
from saggar.egress.ca_host import TaskCa
from saggar.plan.endpoint import Prompt
from saggar.plan.models import ModelPlanner, ModelWorker
from saggar.plan.worker import WorkerRequest
from saggar.policy.load import load_file
from saggar.runtime import model_host
from saggar.runtime.model_host import QuarantinedModel
from saggar.testing.model_host import ScriptedEndpoint

pytestmark = [pytest.mark.requires_userns, pytest.mark.timeout(180)]
HOST = "model.allowed.test"
KEY = "sk-REALWORKERKEY0123456789abcdef"
FORMS = {
    "openai": ('profile = "openai", credential = { source = "env:WORKER_KEY" }', "authorization", f"Bearer {KEY}"),
    "anthropic": (
        (
            'rules = [{ id = "infer", methods = ["POST"], paths = ["/v1/messages"] }], credential = { source = "env:WORKER_KEY", kind = "header",'
            ' name = "x-api-key", env = "ANTHROPIC_API_KEY", format = "anthropic" }'
        ),
        "x-api-key",
        KEY,
    ),
}
SCHEMA = TypeSpec("object", fields=(("amount", TypeSpec("number")),), required=("amount",))


@pytest.fixture
def quarantined(place, monkeypatch):
    """A function: message format and script to a model in its cell and the endpoint, over TLS."""
    monkeypatch.setenv("SAGGAR_STATE_DIR", f"{place}/state")
    monkeypatch.setenv("WORKER_KEY", KEY)
    ca = TaskCa("upstream", time.time())
    certificate, key = ca.leaf(HOST)
    for name, text in (("leaf.pem", certificate + key), ("ca.pem", ca.pem)):
        with open(f"{place}/{name}", "w") as f:
            f.write(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{place}/leaf.pem")
    started = []

    def start(form, script):
        endpoint = ScriptedEndpoint(script, context)
        started.append(endpoint.__enter__())
        with open(f"{place}/policy.toml", "w") as f:
            f.write(
                f'[[egress.allow]]\nhost = "{HOST}"\nid = "model"\nconnect_to = "127.0.0.1:{endpoint.port}"\n'
                f'http = {{ ca = "{place}/ca.pem", {FORMS[form][0]} }}\n'
            )
        policy = load_file(f"{place}/policy.toml")
        return QuarantinedModel(form, f"https://{HOST}/v1", "m", policy, sleep=lambda _: None), endpoint

    yield start
    for endpoint in started:
        endpoint.__exit__(None, None, None)


def records(place, model):
    with open(f"{place}/state/runs/{model.runs[-1]}/audit.jsonl") as f:
        return [json.loads(line) for line in f]


@pytest.mark.parametrize("form", FORMS)
def test_the_key_is_put_on_the_wire_and_the_answer_is_structured(quarantined, place, form):
    said = iter([("status", 503), '{"amount": 12.5}'])
    model, endpoint = quarantined(form, lambda _: next(said))
    answer = ModelWorker(model, lambda: "mark").answer(WorkerRequest("s1", "how much", "pay 12.50", SCHEMA))
    assert answer == {"amount": 12.5}
    _, header, value = FORMS[form]
    assert [h[header] for h in endpoint.headers] == [value, value]  # the first try, and the one after the 503
    assert (model.calls, len(model.runs), model.spent.prompt > 0, model.spent.answer > 0) == (1, 2, True, True)
    asked = endpoint.bodies[1]
    assert asked["stream"]
    assert "amount" in json.dumps(asked.get("response_format") or asked["tools"])
    log = records(place, model)
    assert KEY not in json.dumps(log)
    assert next(r for r in log if r["reason"] == "rule_allows")["detail"]["credential"] == "model"


@pytest.mark.parametrize("form", FORMS)
def test_planner_and_worker_share_the_endpoint_and_no_cell(quarantined, form):
    model, endpoint = quarantined(form, lambda _: "reply('hello')")
    assert ModelPlanner(model).plan("say hello", {}, "") == "reply('hello')"
    model.say(Prompt("s", "u"))
    assert len(set(model.runs)) == len(endpoint.bodies) == 2


#: appended to the client: what it answers is what a second process found of the key, and whom it could reach
SEARCH = r"""
import socket
found = []
pid = os.fork()
r, w = job["pipe"]
if pid == 0:
    needle = bytes.fromhex(job["hex"])
    size, places = 0, []
    def look(place, data):
        if needle in data: places.append(place)
    parent = str(os.getppid())
    for p in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try: look("/proc/" + p + "/" + name, open("/proc/" + p + "/" + name, "rb").read())
            except OSError: pass
    mem = open("/proc/" + parent + "/mem", "rb", 0)
    for line in open("/proc/" + parent + "/maps"):
        start, _, end = line.split()[0].partition("-")
        try:
            mem.seek(int(start, 16)); data = mem.read(int(end, 16) - int(start, 16))
        except (OSError, OverflowError, ValueError): continue
        size += len(data); look("memory", data)
    for top in ("/home", "/tmp", "/run", "/etc", "/dev/shm", "/var"):
        for base, _, names in os.walk(top):
            for name in names:
                try: look(base + name, open(os.path.join(base, name), "rb").read(1 << 24))
                except OSError: pass
    os.write(w, json.dumps([size > 1 << 20, places]).encode())
    os._exit(0)
os.close(w)
found = json.loads(os.read(r, 65536))
os.waitpid(pid, 0)
for host, port in (("other.allowed.test", 443), ("192.0.2.7", 443), ("127.0.0.1", job["upstream"])):
    try:
        s = socket.create_connection((host, port), timeout=5)
        s = ssl.create_default_context().wrap_socket(s, server_hostname=host)
        found.append(host)
    except OSError: pass
sys.stdout.buffer.write(b"data: " + json.dumps({"choices": [{"delta": {"content": json.dumps(found)}, "finish_reason": "stop"}]}).encode() + b"\n\n")
"""


def test_no_key_in_the_worker_and_no_other_host(quarantined, place, monkeypatch):
    model, endpoint = quarantined("openai", lambda _: ("cut", "x"))
    # the shipped client, after whose work the cell is searched
    fill = f'job["hex"], job["upstream"], job["pipe"] = "{KEY.encode().hex()}", {endpoint.port}, os.pipe()\n'
    client = model_host.CLIENT + fill + SEARCH
    monkeypatch.setattr(model_host, "CLIENT", client)
    said = model.say(Prompt("s", "u"))
    assert endpoint.headers[0]["authorization"] == f"Bearer {KEY}"
    assert json.loads(said.text.removeprefix("x")) == [True, []]
    refused = [(r["reason"], r["detail"].get("host")) for r in records(place, model) if r["effect"] == "deny"]
    assert ("no_name", "") in refused, refused  # an address is no host
    assert ("host_not_listed", "other.allowed.test") in refused, refused
