"""The benchmark's own proof, where `agentdojo` is installed (the `bench` extra); what needs no package runs always."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from saggar.bench.agentdojo import plans
from saggar.bench.agentdojo.declarations import SUITES
from saggar.bench.stats import triplet, wilson
from saggar.core.errors import PeerError
from saggar.core.label import UNTRUSTED
from saggar.core.tool import AUTHORITY_ROLES


def test_tools_and_plans_are_whole():
    assert {name: len(tools) for name, tools in SUITES.items()} == {
        "workspace": 24,
        "travel": 28,
        "banking": 11,
        "slack": 11,
    }
    assert {name: len(plans.sources(name, 1)) for name in SUITES} == {
        "workspace": 40,
        "travel": 20,
        "banking": 16,
        "slack": 21,
    }
    for edition, counts in ((2, [6, 3, 6, 2]), (3, [0, 0, 5, 0])):
        held = {n: (plans.sources(n, edition - 1), plans.sources(n, edition)) for n in SUITES}
        assert all(before.keys() == after.keys() for before, after in held.values())
        assert [sum(before[t] != after[t] for t in after) for before, after in held.values()] == counts


def test_every_outward_tool_has_an_authority_argument():
    """No effect on others whose target is guarded by nothing."""
    for tools in SUITES.values():
        for t in tools.values():
            if t.effect in ("egress", "pay", "destructive"):
                assert any(a.role in AUTHORITY_ROLES for a in t.arguments), t.name


def test_text_that_others_write_is_untrusted():
    for name, path in [("get_webpage", ""), ("read_file", ""), ("search_emails", "[].body"), ("list_files", "[].content"),
                       ("read_inbox", "[].body"), ("get_rating_reviews_for_hotels", "[].reviews[]"),
                       ("get_day_calendar_events", "[].description")]:  # fmt: skip
        tool = next(t for tools in SUITES.values() for t in tools.values() if t.name == name)
        assert tool.label_of(path).integrity == UNTRUSTED, name


@pytest.mark.parametrize(("hits", "of", "low", "high"), [(0, 929, 0.0, 0.0041), (20, 929, 0.0140, 0.0330), (0, 0, 0.0, 1.0), (5, 5, 0.5655, 1.0)])  # fmt: skip
def test_wilson(hits, of, low, high):
    assert wilson(hits, of) == pytest.approx((low, high), abs=5e-4)


def test_triplet_never_gives_a_lone_percentage():
    assert set(triplet(0, 1, 2)) == {"allow", "ask", "deny", "of", "interval_95"}


needs_package = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("agentdojo"), reason="needs the `agentdojo` package (extra `bench`)"
)


@needs_package
def test_plan_mode_figures():
    from saggar.bench.agentdojo import goals, measure, world

    suites = world.suites()
    tested = measure.self_test(suites)
    assert (tested["ground_truths"], tested["injections"], tested["failed"]) == (97, 35, [])
    benign = measure.plan_benign(suites, 3)
    assert benign.useful >= goals.USEFUL
    assert benign.no_ask >= goals.UNASKED
    assert benign.denied == 0
    assert measure.overprovision(suites, benign)["plan_all"] <= 1.3


@needs_package
def test_the_static_pass_foresees_every_question_of_the_97_plans():
    from saggar.bench.agentdojo import planmode, world
    from saggar.bench.agentdojo.oracle import Oracle, User
    from saggar.plan.check import check

    for name, suite in world.suites().items():
        for task in suite.user_tasks.values():
            plan = planmode.plan_of(name, task.ID, task.PROMPT)
            report = check(plan, SUITES[name])
            assert report.sound, (name, task.ID, report.faults)
            here = suite.world(task)
            oracle = Oracle(name, task, plan, world.truth_of(task, here.before))
            result = planmode.run(suite, task, here, oracle, User(name, task.ID, "approved"))
            asked = {e.key.rpartition("/")[2] for e in result.events if e.effect == "ask"}
            assert asked <= {q.step for q in report.questions}, (name, task.ID)


@needs_package
@pytest.mark.timeout(300)
def test_no_act_without_a_human_in_the_suite_with_the_strongest_tools():
    """The whole benchmark is `saggar bench agentdojo`; banking is its shortest suite."""
    from saggar.bench.agentdojo import measure, world

    suites = {"banking": world.suites()["banking"]}
    tally = measure.plan_attack(suites, measure.Terms(3, friends=False, drift_percent=10), lambda _: None)
    assert tally.acts["allow"] == 0
    assert tally.acts.total() == 144
    assert tally.cards == tally.named


@needs_package
def test_random_throws_hit_nothing_either():
    from saggar.bench.agentdojo import measure, world

    found = world.suites()
    thrown = measure.plan_throws({n: found[n] for n in ("banking", "slack")}, 3, seed=7)
    assert thrown["runs"] > 300
    assert thrown["breached"] == []


@needs_package
def test_a_real_planner_and_worker_over_an_endpoint_resumably(tmp_path, capsys):
    from saggar.cli.main import main
    from saggar.testing.model_host import ScriptedEndpoint

    asked = []
    lock = threading.Lock()

    def script(body):
        with lock:
            asked.append(body)
        user = body["messages"][-1]["content"]
        if "total spending" in user:
            return "reply('You spent 1050 in March 2022.')"
        return "this is no plan" if len(asked) % 2 else "reply('I do not know.')"

    out = str(tmp_path / "results.jsonl")
    with ScriptedEndpoint(script) as server:
        command = [
            "bench",
            "agentdojo",
            "--model",
            "m",
            "--base",
            f"{server.url}/v1",
            "--suite",
            "banking",
            "--out",
            out,
        ]
        assert main([*command, "--estimate", "--price", "1,2"]) == 0
        ahead = json.loads(capsys.readouterr().err.partition("estimate: ")[2])
        assert ahead["runs"] == 16 + 144
        assert ahead["cost"] > 0
        assert asked == []
        assert main([*command, "--benign", "--limit", "5", "--json"]) == 0
        first = json.loads(capsys.readouterr().out)
        calls = len(asked)
        assert first["benign"]["of"] == 5
        assert first["benign"]["useful_with_no_ask"] >= 1
        assert main([*command, "--benign", "--limit", "5", "--json"]) == 0
        second = json.loads(capsys.readouterr().out)
        assert second["benign"]["of"] == 10
        assert len(asked) > calls
        assert main([*command, "--limit", "20", "--json"]) == 0
        third = json.loads(capsys.readouterr().out)
        assert third["attempts"] >= 10
        assert third["breaches"] == 0
        assert third["tokens_in"] > 0
    with open(out, encoding="utf-8") as f:
        names = [json.loads(line)["job"] for line in f]
    assert len(names) == len(set(names)) == 30


@needs_package
@pytest.mark.timeout(180)
def test_killed_in_the_middle_it_goes_on_to_the_same_result(tmp_path):
    """`kill -9` while the third task is asked about, and a torn line left behind: the next run does the rest."""
    from saggar.testing.model_host import ScriptedEndpoint

    reached, held, hold = threading.Event(), threading.Event(), [True]
    prompts = []

    def script(body):
        prompts.append(body["messages"][-1]["content"])
        if hold[0] and len(set(prompts)) == 3:
            reached.set()
            held.wait(60)
        return "this is no plan" if "refund" in prompts[-1].lower() else "reply('I do not know.')"

    def command(out, limit=6):
        return [
            sys.executable, "-m", "saggar", "bench", "agentdojo", "--model", "m", "--base", f"{server.url}/v1",
            "--suite", "banking", "--benign", "--limit", str(limit), "--json", "--out", str(tmp_path / out),
        ]  # fmt: skip

    with ScriptedEndpoint(script) as server:
        first = subprocess.Popen(command("a"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert reached.wait(60)
        first.kill()
        first.wait()
        hold[0] = False
        held.set()
        kept = (tmp_path / "a").read_bytes()
        assert kept.count(b"\n") == 2
        (tmp_path / "a").write_bytes(kept + b'{"job": "banking/user_task_2/ben')
        asked = len(prompts)
        done = subprocess.run(command("a", 4), capture_output=True, check=True)
        assert len(set(prompts[asked:])) >= 4
        # what was done is not asked about again
        assert not set(prompts[:2]) & set(prompts[asked:])
        whole = subprocess.run(command("b"), capture_output=True, check=True)
    assert json.loads(done.stdout) == json.loads(whole.stdout)
    assert json.loads(done.stdout)["benign"]["of"] == 6


@needs_package
def test_a_planner_that_could_not_be_asked_is_asked_the_next_time(tmp_path):
    from saggar.bench.agentdojo import live_host, world

    out = tmp_path / "r.jsonl"
    rows = [("banking/user_task_0/benign", "planner: nobody there"), ("banking/user_task_1/benign", "done")]
    counts = {"tokens_in": 1, "tokens_out": 1}
    out.write_text("".join(json.dumps({"job": j, "model": "m", "status": s} | counts) + "\n" for j, s in rows))
    options = live_host.Options("m", "http://127.0.0.1:1/v1", out=str(out), suites=("banking",), attacks=False)
    names = [j.name for j in live_host.start(options, world.suites()).todo()]
    assert "banking/user_task_0/benign" in names
    assert "banking/user_task_1/benign" not in names


LIVE = ["bench", "agentdojo", "--model", "m", "--base", "http://127.0.0.1:1/v1", "--suite", "banking", "--benign"]


@needs_package
def test_nothing_is_asked_where_nothing_can_be_kept(tmp_path, capsys):
    from saggar.cli.main import main
    from saggar.testing.model_host import ScriptedEndpoint

    with ScriptedEndpoint(lambda _: "reply('x')") as server:
        command = [w if "127.0.0.1" not in w else f"{server.url}/v1" for w in LIVE]
        assert main([*command, "--limit", "1", "--out", str(tmp_path / "no" / "x")]) == 2
        assert server.bodies == []
    assert "cannot write" in capsys.readouterr().err


@needs_package
@pytest.mark.parametrize("limit", ["-3", "0", "x", "1.5", "٣", ""])
def test_a_limit_is_a_number_above_zero(limit, tmp_path, capsys):
    from saggar.cli.main import main

    assert main([*LIVE, "--limit", limit, "--out", str(tmp_path / "r")]) == 2
    assert "above zero" in capsys.readouterr().err


@needs_package
def test_a_suite_named_twice_counts_once(tmp_path, capsys):
    from saggar.cli.main import main

    assert main([*LIVE, "--suite", "banking", "--estimate", "--out", str(tmp_path / "r")]) == 0
    assert json.loads(capsys.readouterr().err.partition("estimate: ")[2])["runs"] == 16


@needs_package
def test_an_endpoint_that_never_answers_is_no_result(tmp_path, capsys, monkeypatch):
    from saggar.bench.agentdojo import live_host
    from saggar.cli.main import main

    monkeypatch.setattr(live_host.Endpoint, "say", _nobody)
    assert main([*LIVE, "--limit", "2", "--out", str(tmp_path / "r"), "--json"]) == 5
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert (found["unanswered"], found["benign"]["of"], found["attempts"]) == (2, 0, 0)
    assert "answered nothing" in out.err


def _nobody(*_):
    raise PeerError("nobody there")


@needs_package
def test_a_kept_line_that_no_run_wrote_is_made_anew(tmp_path):
    from saggar.bench.agentdojo import live_host, world

    whole = {"job": "banking/user_task_9/benign", "model": "m", "status": "done", "tokens_in": 1, "tokens_out": 2}
    wrong = [{"tokens_in": "x"}, {"tokens_out": -1}, {"tokens_in": None}, {"status": 7}, {"outcome": []}, {"asks": "x"}]
    out = tmp_path / "r"
    out.write_text(
        "".join(json.dumps(whole | {"job": f"banking/user_task_{n}/benign"} | w) + "\n" for n, w in enumerate(wrong))
    )
    options = live_host.Options("m", "http://127.0.0.1:1/v1", out=str(out), suites=("banking",), attacks=False)
    assert live_host.start(options, world.suites()).done == {}
    with open(out, "a") as f:
        f.write(json.dumps(whole) + "\n")
    held = live_host.start(options, world.suites())
    assert set(held.done) == {"banking/user_task_9/benign"}
    assert held.summary()["tokens_out"] == 2
