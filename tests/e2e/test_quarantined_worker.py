"""The worker in a cell of its own, against a scripted model on loopback: one destination, no key, nothing left over."""

from __future__ import annotations

import json

import pytest

import saggar
from saggar.core.errors import PeerError, UsageError
from saggar.core.tool import TypeSpec
from saggar.plan.endpoint import Prompt
from saggar.plan.models import ModelPlanner, ModelWorker
from saggar.plan.worker import WorkerRequest
from saggar.policy.model import EgressPolicy, EgressRule, IsolationPolicy, Policy
from saggar.runtime import model_host
from saggar.runtime.model_host import QuarantinedModel
from saggar.testing.model_host import ScriptedEndpoint

pytestmark = [pytest.mark.requires_userns]
HOST = "model.allowed.test"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch, place):
    monkeypatch.setenv("SAGGAR_STATE_DIR", f"{place}/state")


def policy(server, *more):
    port = int(server.url.rpartition(":")[2])
    rule = EgressRule(host=HOST, ports=(80,), connect_to=("127.0.0.1", port), id="model")
    return Policy(egress=EgressPolicy(allow=(rule, *more)))


def model(server, **more):
    return QuarantinedModel("openai", f"http://{HOST}/v1", "m", policy(server), sleep=lambda _: None, **more)


def test_an_answer_comes_out_of_a_cell():
    schema = TypeSpec("object", fields=(("amount", TypeSpec("number")),), required=("amount",))
    with ScriptedEndpoint(lambda _: '{"amount": 12.5}') as server:
        quarantined = model(server)
        worker = ModelWorker(quarantined, lambda: "mark")
        answer = worker.answer(WorkerRequest("s1", "how much", "pay 12.50", schema))
    assert answer == {"amount": 12.5}
    assert len(quarantined.runs) == 1
    assert "pay 12.50" in server.bodies[0]["messages"][1]["content"]
    assert quarantined.spent.prompt == 11


@pytest.mark.parametrize(("fault", "words"), [(("status", 401), "answered 401"), (("cut", "half"), "broke off"), (("status", 503), "503")])  # fmt: skip
def test_faults(fault, words):
    with ScriptedEndpoint(lambda _: fault) as server, pytest.raises(PeerError) as err:
        model(server).say(Prompt("s", "u"))
    assert words in str(err.value)


def test_a_turned_worker_reaches_nothing_else(monkeypatch):
    """Its client replaced by one that tries: another host, another port, a file of ours, a second process's memory."""
    tries = """
import json, os, socket, sys
job = json.load(sys.stdin)
found = []
for host, port in (("192.0.2.7", 443), ("evil.test", 80), ("127.0.0.1", PORT)):
    try:
        s = socket.create_connection((host, port), timeout=3); s.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        if b" 200 " in s.recv(100): found.append(host)
    except OSError: pass
for path in ("/etc/shadow", "/root/.ssh", os.path.expanduser("~/.ssh")):
    try: open(path).read(); found.append(path)
    except OSError: pass
text = json.dumps(found)
print("200 ")
print("data: " + json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]}))
"""
    with ScriptedEndpoint(lambda _: "x") as server:
        monkeypatch.setattr(model_host, "CLIENT", tries.replace("PORT", server.url.rpartition(":")[2]))
        said = model(server).say(Prompt("s", "u"))
    assert json.loads(said.text) == []
    assert server.bodies == []


def test_a_policy_that_gives_more_is_refused():
    with ScriptedEndpoint(lambda _: "x") as server:
        with pytest.raises(UsageError):
            QuarantinedModel("openai", f"http://{HOST}/v1", "m", policy(server, EgressRule(host="other.test")))
        wider = policy(server).replace(isolation=IsolationPolicy(read=("/etc",)))
        with pytest.raises(UsageError):
            QuarantinedModel("openai", f"http://{HOST}/v1", "m", wider)
        with pytest.raises(UsageError):
            QuarantinedModel("openai", "http://elsewhere.test/v1", "m", policy(server))


def test_a_session_with_both_models_behind_walls():
    @saggar.tool("read:note", effect="read")
    def read_note() -> str:
        """A note."""
        return "the meeting is on Friday"

    def script(body):
        if body["messages"][0]["content"].startswith("You write a plan"):
            return 'x = extract(read_note(), {"day": "string"}, "which day")\nreply(f"It is on {x.day}")'
        return '{"day": "Friday"}'

    with ScriptedEndpoint(script) as server:
        quarantined = model(server)
        with saggar.open_session(
            tools=[read_note],
            planner=ModelPlanner(quarantined),
            worker=ModelWorker(quarantined, lambda: "mark"),
            capabilities=["read:note"],
            channels=[],
            wait_s=0,
        ) as session:
            answer = session.ask_sync("When is the meeting?")
    assert answer.text == "It is on Friday"
    assert "Friday" not in json.dumps(server.bodies[0])
    assert len(quarantined.runs) == 2
