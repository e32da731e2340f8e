"""Twin of approval.book, store_host, numbers, show and remember."""

from __future__ import annotations

import json
import os
import stat
import threading
from dataclasses import replace

import pytest

from saggar.approval.book import Book, Event, answer_from_json, answer_to_json, event_from_json
from saggar.approval.numbers import numbers
from saggar.approval.remember import remembered
from saggar.approval.show import card
from saggar.approval.store_host import Store
from saggar.core.approval import Answer, CardLine, Question
from saggar.core.errors import ParseError, UsageError

LINES = (
    CardLine("to", "recipient", "Bob", '"bob@acme.com"', "user: prompt"),
    CardLine("cc", "recipient", "", "null", "the model (not tracked)"),
    CardLine("body", "content", "", '"hi"', "untrusted: inbox"),
    CardLine("amount", "amount", "", '"5"', "user: prompt"),
)


def ask(ident="q1", args="a" * 64, template="t" * 64, **o):
    return Question(
        id=ident, task="t", tool="send", operation="send:email", effect="egress", reversible=False, lines=LINES,
        reasons=("effect_irreversible",), rule="builtin.destructive", args_hash=args, template_hash=template,
        template_axis="body" if template else "", **o,
    )  # fmt: skip


def yes(q, scope="once", uses=1, who="human", life=60.0):
    return Answer("approved", q.args_hash, scope, uses, "me", who, life)


@pytest.fixture
def store(tmp_path):
    clock = [1000.0]
    s = Store(str(tmp_path / "approvals.jsonl"), wall=lambda: clock[0])
    s.clock = clock
    yield s
    s.close()


class TestAnswers:
    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (lambda q: Answer("approved", "b" * 64, reviewer_class="human"), "for another call"),
            (lambda q: Answer("approved", q.template_hash, "template", reviewer_class="human"), "for another call"),
            (lambda q: Answer("timeout", q.args_hash), "approved or denied"),
            (lambda q: yes(q, "times", 101), "100 times at most"),
            (lambda q: yes(q, "times", 0), "100 times at most"),
            (lambda q: yes(q, life=0.0), "at most a day"),
            (lambda q: yes(q, life=1e9), "at most a day"),
            (lambda q: yes(q, life=float("nan")), "at most a day"),
        ],
    )
    def test_what_does_not_count(self, store, answer, message):
        q = ask()
        store.ask(q)
        with pytest.raises(UsageError, match=message):
            store.answer("q1", answer(q))
        assert [e.state for e in store.entries()] == ["waiting"]

    def test_for_people(self, store):
        q = ask(human_only=True)
        store.ask(q)
        with pytest.raises(UsageError, match="for a person"):
            store.answer("q1", yes(q, who="automatic"))
        store.answer("q1", Answer("denied", q.args_hash))  # a machine may refuse

    def test_twice_and_unknown(self, store):
        q = ask()
        store.ask(q)
        store.answer("q1", yes(q))
        with pytest.raises(UsageError, match="was answered"):
            store.answer("q1", yes(q))
        with pytest.raises(UsageError, match="no question"):
            store.answer("q2", yes(q))

    def test_no_template_without_an_axis(self, store):
        q = ask(template="")
        store.ask(q)
        with pytest.raises(UsageError, match="template could leave open"):
            store.answer("q1", yes(q, "template"))


class TestUses:
    @pytest.mark.parametrize(
        ("scope", "uses", "same", "other_body", "other_call"),
        [("once", 1, 0, 0, 0), ("times", 3, 2, 0, 0), ("template", 1, 99, 99, 0), ("task", 1, 99, 99, 99)],
    )
    def test_what_is_left_after_the_asking_call(self, store, scope, uses, same, other_body, other_call):
        q = ask()
        store.ask(q)
        store.answer("q1", yes(q, scope, uses))
        for question, left in [
            (ask("x"), same), (ask("y", args="b" * 64), other_body), (ask("z", args="c" * 64, template="u" * 64), other_call),
        ]:  # fmt: skip
            copy = Book(dict(store._book.entries), list(store._book.standing))
            count = 0
            while copy.find(question, 1000.0) and count < 200:
                copy._spend(copy.find(question, 1000.0).question)
                count += 1
            assert count == left

    def test_it_ends(self, store):
        q = ask()
        store.ask(q)
        store.answer("q1", yes(q, "times", 5, life=30.0))
        store.clock[0] += 29.9
        assert store.spend(ask("x"))
        store.clock[0] += 0.2
        assert store.spend(ask("x")) is None

    def test_it_covers_the_reasons_that_were_shown(self, store):
        q = ask()
        store.ask(q)
        store.answer("q1", yes(q, "task"))
        assert store.spend(ask("x"))
        other = replace(ask("y"), reasons=("effect_irreversible", "lethal_trifecta"))
        assert store.spend(other) is None

    def test_a_machines_standing_approval_does_not_serve_a_question_for_people(self, store):
        q = ask()
        store.ask(q)
        store.answer("q1", yes(q, "times", 5, who="automatic"))
        assert store.spend(ask("x", human_only=True)) is None
        assert store.spend(ask("x"))

    def test_a_parked_call_is_allowed_once_when_the_run_comes_back(self, store):
        q = ask()
        store.ask(q)
        assert store.park("q1") is None
        assert [e.state for e in store.waiting()] == ["parked"]
        store.clock[0] += 4000
        store.answer("q1", yes(q))
        again = Store(store.path, wall=lambda: store.clock[0] + 7200)  # another process, later
        assert again.spend(ask("q2")).scope == "once"
        assert again.spend(ask("q3")) is None
        assert store.spend(ask("q4")) is None
        again.close()

    @pytest.mark.parametrize(
        ("answer", "after", "holds"),
        [
            (lambda q: yes(q), 7200, True),
            (lambda q: yes(q, life=120.0), 119, True),
            (lambda q: yes(q, life=120.0), 121, False),
            (lambda q: yes(q, "task", life=60.0), 59, True),
            (lambda q: yes(q, "task", life=60.0), 61, False),
            (lambda q: yes(q, "times", 5, life=60.0), 61, False),
            (lambda q: yes(q, "template", life=3600.0), 3601, False),
        ],
    )
    def test_a_parked_approval_lives_as_long_as_was_said(self, store, answer, after, holds):
        q = ask()
        store.ask(q)
        store.park("q1")
        found = answer(q)
        store.answer("q1", found)
        store.clock[0] += after
        assert (store.spend(ask("q2")) is not None) is holds

    def test_of_a_session_that_died_nobody_waits(self, store):
        store.ask(ask())
        again = Store(store.path, wall=lambda: store.clock[0])
        again.park_all()
        assert [e.state for e in store.waiting()] == ["parked"]
        store.answer("q1", yes(ask()))
        assert again.spend(ask("q2"))
        again.park_all()  # what is answered stays so
        assert [e.state for e in store.entries()] == ["approved"]
        again.close()

    def test_two_processes_never_spend_one_use_twice(self, store):
        q = ask()
        store.ask(q)
        store.answer("q1", yes(q, "times", 11))
        stores = [Store(store.path, wall=lambda: 1000.0) for _ in range(4)]
        got = []

        def spend(s):
            for _ in range(5):
                if s.spend(ask("x")):
                    got.append(1)

        threads = [threading.Thread(target=spend, args=(s,)) for s in stores]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(got) == 10
        for s in stores:
            s.close()


class TestFile:
    def test_private_and_not_through_a_link(self, tmp_path):
        path = tmp_path / "a.jsonl"
        Store(str(path)).close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        link = tmp_path / "b.jsonl"
        link.symlink_to(path)
        with pytest.raises(OSError):
            Store(str(link))

    def test_a_torn_line_never_counted(self, store):
        store.ask(ask())
        with open(store.path, "ab") as f:
            f.write(b'{"kind":"answered","id":"q1"')
        again = Store(store.path)
        assert [e.state for e in again.entries()] == ["waiting"]
        again.ask(ask("q2"))
        assert len(Store(store.path).entries()) == 2

    def test_a_damaged_line_is_an_error(self, store):
        store.ask(ask())
        with open(store.path, "ab") as f:
            f.write(b"{}\n")
        with pytest.raises(OSError, match="damaged"):
            store.entries()

    def test_a_full_disk_is_an_error(self, store):
        os.close(store._fd)
        store._fd = os.open("/dev/full", os.O_RDWR)
        with pytest.raises(OSError):
            store.ask(ask())
        assert store._book.entries == {}

    def test_round_trips(self):
        for event in (
            Event("asked", 1.0, "q1", question=ask()),
            Event("answered", 2.0, "q1", answer=yes(ask())),
            Event("spent", 3.0, "q1"),
        ):
            assert event_from_json(event.to_json()) == event

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda d: d.pop("uses"), lambda d: d.update(extra=1), lambda d: d.update(kind="yes"), lambda d: d.update(uses="1"),
            lambda d: d.update(uses=True), lambda d: d.update(scope="ever"), lambda d: d.update(reviewer_class="god"),
            lambda d: d.update(args_hash=None),
        ],
    )  # fmt: skip
    def test_answers_are_closed(self, spoil):
        data = answer_to_json(yes(ask()))
        spoil(data)
        with pytest.raises(ParseError):
            answer_from_json(data)


def test_batch_is_tool_and_template(store):
    for q in (ask("q1"), ask("q2", args="b" * 64), ask("q3", template="u" * 64), ask("q4", template="")):
        store.ask(q)
    assert [e.question.id for e in store.batch("q1")] == ["q1", "q2"]
    assert [e.question.id for e in store.batch("q4")] == ["q4"]


def test_numbers(store):
    for i, (seconds, kind) in enumerate([(1.0, "approved"), (10.0, "denied"), (30.0, "approved"), (0, None)]):
        q = ask(f"q{i}")
        store.ask(q)
        store.clock[0] += seconds
        if kind:
            store.answer(q.id, Answer(kind, q.args_hash))
    store.park("q3")
    n = numbers(store.entries(), store.clock[0])
    assert (n.asked, n.approved, n.denied, n.parked, n.median_s, n.hasty) == (4, 2, 1, 1, 10.0, 1)
    assert (n.last_hour, numbers(store.entries(), store.clock[0] + 3600).last_hour) == (4, 0)
    assert numbers([], 0.0).median_s is None


def test_card():
    text = card(ask())
    assert "send (send:email) wants to run" in text
    assert "cannot be undone" in text
    assert 'Bob  = "bob@acme.com"' in text
    assert "from untrusted: inbox" in text
    assert "cc" not in text.replace("acme", "")
    assert "with any `body`" in text


def test_long_values_wrap_and_are_whole():
    q = ask()
    long = CardLine("body", "content", "", '"' + "word " * 100 + '"', "x")
    text = card(Question(**{f: getattr(q, f) for f in q.__slots__} | {"lines": (long,)}), width=60)
    assert max(map(len, text.splitlines())) <= 66
    assert text.count("word") == 100


class TestRemember:
    def test_is_a_diff_that_names_every_authority_argument(self):
        diff = remembered(ask())
        assert diff.startswith("--- saggar.toml\n+++ saggar.toml\n@@ -0,0 +1,8 @@\n")
        assert '+when = { to = "\\"bob@acme.com\\"", cc = "len<=0", amount = "..5" }' in diff
        assert '+accepts = ["builtin.destructive"]' in diff

    def test_widened_by_a_person(self):
        assert 'to = "*@acme.com"' in remembered(ask(), {"to": "*@acme.com"})

    @pytest.mark.parametrize(
        "term",
        [
            "*",
            "**",
            "@",
            "*.",
            "*@",
            "/**",
            "",
            "each(*)",
            "len<=4096",
            "*&len<=99",
            "each(len<=9&*)",
            "each(each(*))",
            "cidr(0.0.0.0/0)",
            "under(/)",
            'prefix("@")',
        ],
    )
    def test_refuses_what_says_nothing(self, term):
        with pytest.raises(UsageError, match="allow anything"):
            remembered(ask(), {"to": term})

    @pytest.mark.parametrize("term", ["each(", "a**b*", "*@a.com&", 'x"y', "{a", "len<=x"])
    def test_refuses_what_does_not_parse(self, term):
        with pytest.raises(UsageError, match="is not a term"):
            remembered(ask(), {"to": term})

    @pytest.mark.parametrize(
        "term", ["each(*@acme.com)", "*@acme.com&len<=99", '{"a@b.c", d@e.f}', "cidr(10.0.0.0/8)", "..5"]
    )
    def test_takes_what_bounds(self, term):
        assert json.dumps(term) in remembered(ask(), {"to": term})

    def test_refuses_what_is_for_people_and_what_is_not_there(self):
        with pytest.raises(UsageError, match="not remembered"):
            remembered(ask(human_only=True))
        with pytest.raises(UsageError, match="no argument `bcc`"):
            remembered(ask(), {"bcc": "x@y.z"})

    def test_the_rule_loads_and_allows_the_call(self):
        import tomllib

        from saggar.policy.load import parse

        toml = "\n".join(x[1:] for x in remembered(ask()).splitlines() if x.startswith("+") and not x.startswith("+++"))
        assert tomllib.loads(toml)
        assert parse(toml, "x").tools.rule[0].id == "remembered-q1"
