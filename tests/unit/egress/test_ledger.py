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
        {"kind": "egress.summary", "detail": {"total": [1], "used": {"a.test:443": {"bytes_up": "x"}}}},
    ]
    ledger = read([*odd, {"kind": "egress.decision", "effect": "allow", "detail": None}])
    assert (ledger.declared, ledger.used, ledger.refused) == ({}, {}, {})


def test_the_parts_of_a_summary_add_up():
    part = {"kind": "egress.summary", "layer": "L2", "effect": ""}
    ledger = read(
        [
            *LOG[:3],
            {**part, "detail": {"total": {"count": 9, "bytes_up": 50, "bytes_down": 70}, "refused_total": 4}},
            {**part, "detail": {"used": {"b.test:443": {"count": 7, "bytes_up": 45, "bytes_down": 63}}}},
            {**part, "detail": {"used": {"a.test:443": {"count": 2, "bytes_up": 5, "bytes_down": 7}}}},
        ]
    )
    assert ledger.used == {("a", "a.test", 443): Used(2, 5, 7)}
    assert (ledger.total, ledger.refused_total) == (Used(9, 50, 70), 4)
