"""Twin of capability.overprovision: the smallest policy allows what was done, and only that."""

from __future__ import annotations

from saggar.capability.grant import compile_capability
from saggar.capability.overprovision import report
from saggar.capability.rule import Rule
from saggar.testing.capability_desk import DECLARATIONS, make_desk

CAPS = [
    "read:notes[day=*]",
    "send:email[to=*@acme.com, cc=*]",
    "pay:bill[iban=*, amount=..100]",
    "write:file[/w/**]",
    "read:inbox",
]


def run(calls):
    rules = [Rule("all", "allow", tool="*", accepts=("builtin.destructive", "builtin.authority", "builtin.trifecta"))]
    desk, log, _ = make_desk(*CAPS, rules=rules)
    token = desk.gateway.token(CAPS)
    for name, args in calls:
        desk.gateway.call(token, name, args)
    return report(log.records, "t")


def test_the_smallest_policy():
    calls = [
        ("read_notes", {"day": "2026-05-15"}),
        ("read_notes", {"day": "2026-05-16"}),
        ("send_email", {"to": "bob@acme.com", "subject": "a", "body": "b", "cc": ["eve@acme.com"]}),
        ("send_email", {"to": "bob@evil.example", "subject": "a", "body": "b"}),
        ("pay", {"iban": "DE1", "amount": "7.50"}),
        ("pay", {"iban": "DE1", "amount": "2"}),
    ]
    r = run(calls)
    assert (r.ratio, r.granted_ratio, r.refused) == (5 / 3, 5 / 3, 1)
    assert r.smallest == (
        'pay:bill[iban="DE1", amount=..7.50, max=2, max_amount=9.50]',
        'read:notes[day={"2026-05-15", "2026-05-16"}, max=2]',
        'send:email[to="bob@acme.com", cc="eve@acme.com", max=1]',
    )
    for text in r.smallest:
        assert compile_capability(text, DECLARATIONS)
    assert '-  "read:notes[day=*]",' in r.diff()


def test_the_smallest_policy_allows_the_same_calls_again():
    calls = [("write_file", {"path": f"/w/{i}.txt", "text": "x"}) for i in range(20)]
    r = run(calls)
    assert r.smallest == ('write:file[path=under("/w"), max=20]',)
    desk, _, _ = make_desk(*r.smallest)
    token = desk.gateway.token(r.smallest)
    assert all(desk.gateway.call(token, n, a).done for n, a in calls)


def test_a_task_that_used_nothing_has_no_ratio():
    r = run([])
    assert (r.ratio, r.used, len(r.tools)) == (None, (), 5)


def test_open_calls_show():
    r = run([("read_notes", {"day": "x"})])
    assert r.open_calls == ()
    assert report(
        [{"kind": "capability.intent", "detail": {"tool": "t", "capability": "a:b", "args": {}, "call_id": "c"}}]
    ).open_calls == ("c",)
