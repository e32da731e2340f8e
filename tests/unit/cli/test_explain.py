"""`saggar policy explain` and `saggar audit overprovision`, as typed."""

from __future__ import annotations

import json

import pytest

from saggar.audit.sink_host import AuditLog
from saggar.capability.desk_host import Desk
from saggar.cli.audit import main as audit
from saggar.cli.explain import parse_call
from saggar.cli.policy import main as policy
from saggar.core.errors import UsageError
from saggar.testing.capability_desk import TOOLS

POLICY = """
[tools]
modules = ["saggar.testing.capability_desk"]
capabilities = ["send:email[to=*@acme.com, cc=*]", "pay:bill[iban=DE1, amount=..5]"]

[[tools.rule]]
id = "mail"
effect = "allow"
tool = "send_email"
reason = "colleagues"

[[tools.rule]]
id = "boss"
effect = "deny"
tool = "send_email"
when = { to = "boss@acme.com" }
reason = "never the boss"
"""


@pytest.fixture
def explain(tmp_path, capsys):
    path = tmp_path / "saggar.toml"
    path.write_text(POLICY)

    def run(*words):
        code = policy(["policy", "explain", "--policy", str(path), *words])
        return code, capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("words", "code", "first"),
    [
        (["send_email(to=bob@acme.com, subject=hi, body=x)"], 0, "allow: send_email: rule_allow, decided by mail"),
        (["send_email(to=boss@acme.com, subject=hi, body=x)"], 3, "deny: send_email: rule_deny, decided by boss"),
        (["send_email(to=bob@evil.example, subject=hi, body=x)"], 3, "deny: send_email: no_capability, decided by capability"),
        (["send_email(to=5, subject=hi, body=x)"], 3, "deny: send_email: type_confusion, decided by arguments (argument `to`)"),
        (["send_email(to=bob@acme.com, subject=hi, body=x)", "--tainted"], 3, "ask: send_email: lethal_trifecta, decided by builtin.trifecta"),
        (["send_email(to=bob@acme.com, subject=hi, body=x)", "--label", "to=untrusted"], 3, "ask: send_email: authority_untrusted, decided by builtin.authority"),
        (['pay {"iban":"DE1","amount":"3"}'], 3, "deny: pay: no_rule, decided by no rule"),
    ],
)  # fmt: skip
def test_says_which_rule_decides(explain, words, code, first):
    got, out = explain(*words)
    assert (got, out.splitlines()[0]) == (code, first)


def test_without_a_call_it_says_what_is_reachable(explain):
    code, out = explain()
    assert code == 0
    assert "a way out by send_email, pay" in out
    assert "lethal trifecta: not reachable" in out
    assert json.loads(explain("--json")[1])["outward"] == ["send_email", "pay"]


def test_json_and_reasons(explain):
    _, out = explain("send_email(to=boss@acme.com, subject=hi, body=x)", "--json")
    found = json.loads(out)
    assert [(r["rule"], r["fits"], r["reason"]) for r in found["rules"]] == [
        ("boss", True, "never the boss"),
        ("mail", True, "colleagues"),
    ]


def test_what_is_no_call(explain):
    with pytest.raises(UsageError, match="no tool `mail`"):
        explain("mail(to=x)")
    with pytest.raises(UsageError, match="not ARG=INTEGRITY"):
        explain("send_email(to=x)", "--label", "to=high")


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("t()", ("t", {})),
        ("t(a=1, b=true, c=null)", ("t", {"a": 1, "b": True, "c": None})),
        ('t(a="x, y", b=[1, 2], c=plain words)', ("t", {"a": "x, y", "b": [1, 2], "c": "plain words"})),
        ("t(day=2026-05-15)", ("t", {"day": "2026-05-15"})),
        ('t {"a": {"b": 1}}', ("t", {"a": {"b": 1}})),
    ],
)
def test_parse_call(text, call):
    assert parse_call(text) == call


@pytest.mark.parametrize("text", ["", "t", "t(", "t(a)", "t(a=1, a=2)", "t(1=2)", "t {", "t []", "t{1}"])
def test_parse_call_refuses(text):
    with pytest.raises(UsageError):
        parse_call(text)


def test_overprovision_of_a_log(tmp_path, capsys):
    path = str(tmp_path / "audit.jsonl")
    desk = Desk("task-1", TOOLS, audit=AuditLog(path, "task-1"), capabilities=["read:notes[day=*]"])
    token = desk.gateway.token(["read:notes[day=*]"])
    desk.gateway.call(token, "read_notes", {"day": "2026-05-15"})
    assert audit(["audit", "overprovision", path]) == 0
    out = capsys.readouterr().out
    assert "overprovision: 5.0 offered per used, 1.0 granted per used" in out
    assert '+  "read:notes[day=\\"2026-05-15\\", max=1]",' in out
    audit(["audit", "overprovision", path, "--json"])
    assert json.loads(capsys.readouterr().out)[0]["ratio"] == 5.0
    text = (tmp_path / "audit.jsonl").read_text()
    (tmp_path / "audit.jsonl").write_text(text.replace("2026-05-15", "2026-05-16", 1))
    with pytest.raises(UsageError, match="damaged"):
        audit(["audit", "overprovision", path])
