"""What `show` prints parses back, and says where each value came from."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from saggar.policy.load import default_policy, parse, with_flags
from saggar.policy.model import (
    TIERS,
    WORKSPACE_MODES,
    EgressPolicy,
    EgressRule,
    EnvironmentPolicy,
    IsolationPolicy,
    LimitsPolicy,
    Policy,
    WorkspacePolicy,
)
from saggar.policy.show import literal, to_json, to_toml

FILE = """
[limits]
memory = "512MiB"
[[egress.allow]]
host = "api.allowed.test"
connect_to = "127.0.0.1:8443"
[environment.set]
"\\u001b[31m" = "\\u001b]0;x\\u0007"
"""


def test_text():
    policy = with_flags(parse(FILE, "saggar.toml"), allow=["x.test:8080"], timeout="none")
    assert to_toml(policy) == snapshot("""\
[isolation]
tier = "auto"  # default
read = []      # default

[limits]
memory = "512MiB"  # saggar.toml:3
tasks = 256        # default
cpus = 1.0         # default
disk = "1GiB"      # default
output = "16MiB"   # default
timeout = "none"   # flag
require = "any"    # default

[workspace]
mode = "copy-on-write"  # default
protect = []            # default
unsafe_broad = false    # default

[egress]
processes = 1  # default

[[egress.allow]]
host = "api.allowed.test"      # saggar.toml:5
ports = [443]                  # default
connect_to = "127.0.0.1:8443"  # saggar.toml:6
allow_metadata = false         # default
enabled = true                 # default

[[egress.allow]]
host = "x.test"         # flag
ports = [8080]          # flag
allow_metadata = false  # flag
enabled = true          # flag

[environment]
pass = []  # default

[environment.set]
"\\u001b[31m" = "\\u001b]0;x\\u0007"  # saggar.toml:8

[tools]
modules = []              # default
capabilities = []         # default
amount_drift_percent = 0  # default

# no [[tools.rule]]
""")


def test_json_origins():
    policy = with_flags(parse(FILE, "saggar.toml"), allow=["x.test:80"], tier="process")
    shown = to_json(policy)
    assert shown["origins"]["limits.memory"] == "saggar.toml:3"
    assert shown["origins"]["limits.tasks"] == "default"
    assert shown["origins"]["isolation.tier"] == "flag"
    assert shown["origins"]["egress.allow[0].host"] == "saggar.toml:5"
    assert shown["origins"]["egress.allow[0].ports"] == "default"
    assert shown["origins"]["egress.allow[1].host"] == "flag"
    assert shown["policy"]["egress"]["allow"][1] == {
        "host": "x.test",
        "ports": [80],
        "allow_metadata": False,
        "enabled": True,
    }


def test_file_name_cannot_break_out_of_its_comment():
    text = to_toml(parse("[limits]\ntasks = 3\n", 'a\n[egress]\nallow = [{host="evil.test"}]\x1b[2J'))
    assert parse(text, "f").egress.allow == ()
    assert "\x1b" not in text


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
hosts = st.sampled_from(["a.test", "b.a.test", "*.wild.test", "xn--bcher-kva.example", "c.test"])


@st.composite
def policies(draw):
    rules, taken = [], set()
    for host in draw(st.lists(hosts, max_size=4, unique=True)):
        ports = (
            (443,)
            if host[0] == "*"
            else tuple(draw(st.lists(st.integers(1, 65535), min_size=1, max_size=3, unique=True)))
        )
        own = draw(st.sampled_from(["", "r-1", "r.2", "r_3"]))
        own = "" if own in taken else own
        taken.add(own)
        rules.append(EgressRule(host=host, ports=ports, connect_to=draw(st.sampled_from([None, ("127.0.0.1", 1), ("::1", 65535)])),
                                allow_metadata=draw(st.booleans()), id=own or f"egress.allow[{len(rules)}]"))  # fmt: skip
    return Policy(
        isolation=IsolationPolicy(tier=draw(st.sampled_from(TIERS)), read=draw(st.sampled_from([(), ("/a", "/b c/ü\n")]))),
        limits=LimitsPolicy(
            memory_bytes=draw(st.integers(4 << 20, 2**50)), disk_bytes=draw(st.integers(1, 2**50)), output_bytes=draw(st.sampled_from([1, 1024, 3 << 20])),
            tasks=draw(st.integers(1, 10**6)), cpus=draw(st.floats(0.01, 4096)),
            timeout_s=draw(st.none() | st.floats(0.001, 366 * 86400) | st.sampled_from([1.0, 60.0, 5400.0])),
            require=draw(st.sampled_from(["any", "enforced"])),
        ),
        workspace=WorkspacePolicy(path=draw(st.sampled_from(["", "/w", "/w x/\x7f"])), mode=draw(st.sampled_from(WORKSPACE_MODES)),
                                  protect=draw(st.sampled_from([(), ("a/**", "*.x")])), unsafe_broad=draw(st.booleans())),
        egress=EgressPolicy(allow=tuple(rules)),
        environment=EnvironmentPolicy(
            set=tuple(sorted(draw(st.dictionaries(words.filter(lambda w: w and "=" not in w), words, max_size=3)).items())),
            pass_=tuple(draw(st.lists(words.filter(lambda w: w and "=" not in w), max_size=2, unique=True))),
        ),
    )  # fmt: skip


@given(policies())
def test_i1_text_parses_back(policy):
    text = to_toml(policy)
    assert parse(text, "f").replace(file="", origins={}) == policy
    assert all(c.isprintable() or c == "\n" for c in text)


@given(policies())
def test_i2_every_leaf_has_an_origin(policy):
    shown = to_json(policy)
    assert set(shown["origins"].values()) == {"default"}
    assert len(shown["origins"]) >= 13


@given(words)
def test_literals_read_back(text):
    assert tomllib.loads(f"a = {literal(text)}")["a"] == text


@pytest.mark.parametrize("policy", [default_policy(), Policy(file="x")])
def test_default(policy):
    assert parse(to_toml(policy), "f").replace(file="", origins={}) == default_policy()
