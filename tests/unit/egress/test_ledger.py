from saggar.egress.ledger import Used, read

RULE = {"id": "a", "host": "a.test", "ports": [443, 80], "connect_to": None}


def decision(effect, reason, rule="", kind="egress.decision", **detail):
    return {"layer": "L2", "kind": kind, "effect": effect, "reason": reason, "rule": rule, "detail": detail}


LOG = [
    {"layer": "L1", "kind": "run.start", "effect": "allow", "rule": "", "detail": {"egress": [RULE]}},
    decision("allow", "listed", "a", host="a.test", port=443),
    decision("allow", "listed", "a", host="a.test", port=443),
    decision("deny", "host_not_listed", host="evil.test", port=443),
    decision("deny", "host_not_listed", kind="egress.dns", host="evil.test", type="A"),
    decision("deny", "ip_literal", to="192.0.2.1:80"),
    {
        "layer": "policy",
        "kind": "policy.allow",
        "effect": "allow",
        "rule": "live[0]",
        "detail": {"host": "*.w.test", "ports": [443]},
    },
    decision("allow", "listed", "live[0]", host="x.w.test", port=443),
    {
        "layer": "L2",
        "kind": "egress.summary",
        "effect": "",
        "detail": {"used": {"a.test:443": {"count": 2, "bytes_up": 5, "bytes_down": 7}}},
    },
]


def test_read():
    ledger = read(LOG)
    assert ledger.declared == {"a": ("a.test", (443, 80)), "live[0]": ("*.w.test", (443,))}
    assert ledger.used == {("a", "a.test", 443): Used(2, 5, 7), ("live[0]", "x.w.test", 443): Used(1)}
    assert ledger.refused == {
        ("evil.test", 443, "host_not_listed"): 1,
        ("evil.test", 0, "host_not_listed"): 1,
        ("192.0.2.1:80", 0, "ip_literal"): 1,
    }
    assert ledger.unused() == {"a": (80,)}
    assert ledger.hosts_of("live[0]") == ["x.w.test"]


def test_what_is_not_ours_is_passed_over():
    odd = [
        {},
        {"kind": "run.start", "detail": {"egress": [1, {"ports": "x"}]}},
        {"kind": "egress.summary", "detail": {"used": 3}},
    ]
    ledger = read([*odd, {"kind": "egress.decision", "effect": "allow", "detail": None}])
    assert (ledger.declared, ledger.used, ledger.refused) == ({}, {}, {})
