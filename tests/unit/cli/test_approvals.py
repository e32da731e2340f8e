"""`saggar approvals` over a session's directory, as a person at a terminal and as a machine."""

from __future__ import annotations

import json
import os

import pytest

from saggar.approval.store_host import Store
from saggar.cli.approvals import main
from saggar.core.approval import CardLine, Question
from saggar.core.errors import UsageError


def question(ident="abcdef0123456789", **o):
    lines = (
        CardLine("to", "recipient", "", '"bob@acme.com"', "user: prompt"),
        CardLine("body", "content", "", '"hi"', "x"),
    )
    return Question(
        id=ident, task="t", tool="send_email", operation="send:email", effect="egress", reversible=False, lines=lines,
        reasons=("authority_untrusted",), rule="builtin.authority", args_hash="a" * 64, template_hash="t" * 64,
        template_axis="body", **o,
    )  # fmt: skip


@pytest.fixture
def person(monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda fd: True)


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda fd: False)


@pytest.fixture
def store(tmp_path):
    s = Store(str(tmp_path / "approvals.jsonl"))
    yield s
    s.close()


def run(store, *words):
    return main(["approvals", "--dir", os.path.dirname(store.path), *words])


def test_list_and_show(store, capsys):
    assert run(store, "list") == 0
    assert capsys.readouterr().out == "nothing waits\n"
    store.ask(question())
    run(store, "list")
    assert 'send_email "bob@acme.com"' in capsys.readouterr().out
    run(store, "show", "abc")
    assert "who or what it acts upon came from a source that anyone can write to" in capsys.readouterr().out
    run(store, "list", "--json")
    assert json.loads(capsys.readouterr().out)[0]["question"]["tool"] == "send_email"


def test_approve_and_deny(store, person, capsys):
    store.ask(question())
    store.ask(question("bcdef"))
    run(store, "approve", "abc", "--times", "3", "--for", "10m")
    run(store, "deny", "bcd")
    states = {e.question.id: (e.state, e.answer and e.answer.uses) for e in store.entries()}
    assert states == {"abcdef0123456789": ("approved", 3), "bcdef": ("denied", 1)}
    with pytest.raises(UsageError, match="was answered"):
        run(store, "approve", "abc")
    with pytest.raises(UsageError, match="no question has"):
        run(store, "approve", "zzz")
    run(store, "numbers")
    assert "2 asked" in capsys.readouterr().out


def test_a_machine_cannot_answer_for_people(store, machine):
    store.ask(question(human_only=True))
    with pytest.raises(UsageError, match="for a person"):
        run(store, "approve", "abc")
    assert run(store, "deny", "abc") == 0


def test_batch_and_remember(store, person, capsys):
    store.ask(question())
    store.ask(question("bcdef"))
    run(store, "approve", "abc", "--batch", "--remember", "to=*@acme.com")
    out = capsys.readouterr().out
    assert out.count("approved") == 2 + out.count("approved once, remembered")
    assert '+when = { to = "*@acme.com" }' in out


def test_remember_refuses_a_star_and_approves_nothing(store, person):
    store.ask(question())
    with pytest.raises(UsageError, match="allow anything"):
        run(store, "approve", "abc", "--remember", "to=*")
    assert [e.state for e in store.waiting()] == ["waiting"]


def test_without_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    assert main(["approvals", "list"]) == 0
    assert capsys.readouterr().out == "nothing waits\n"
    with pytest.raises(UsageError, match="no book"):
        main(["approvals", "--dir", str(tmp_path), "list"])
