"""Policy files: what is refused, where, with which hint; and whose value wins."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saggar.core.errors import UsageError
from saggar.policy.load import check, default_policy, discover, effective, load_file, parse
from saggar.policy.model import GIB, MIB, EgressRule, Origin

FULL = """
[isolation]
tier = "process"
read = ["/opt/tools", "/srv//data/"]

[limits]
memory = "512MiB"
tasks = 64
cpus = 2
disk = "1.5GiB"
output = 1048576
timeout = "90s"
require = "enforced"

[workspace]
path = "/home/u/project"
mode = "read-only"
protect = ["deploy/**"]
unsafe_broad = false

[[egress.allow]]
host = "API.allowed.test"
connect_to = "127.0.0.1:8443"
id = "api"

[[egress.allow]]
host = "*.wild.test"
ports = [80, 443]

[environment]
pass = ["LC_ALL"]
[environment.set]
CI = "1"
A = "b=c"
"""


def test_full_file():
    p = parse(FULL, "saggar.toml")
    assert p.isolation.tier == "process"
    assert p.isolation.read == ("/opt/tools", "/srv/data")
    assert p.limits.memory_bytes == 512 * MIB
    assert p.limits.disk_bytes == 3 * GIB // 2
    assert p.limits.output_bytes == MIB
    assert p.limits.cpus == 2.0
    assert p.limits.timeout_s == 90.0
    assert p.limits.require == "enforced"
    assert p.workspace.mode == "read-only"
    assert p.workspace.protect == ("deploy/**",)
    assert p.egress.allow == (
        EgressRule(host="api.allowed.test", connect_to=("127.0.0.1", 8443), id="api"),
        EgressRule(host="*.wild.test", ports=(80, 443), id="egress.allow[1]"),
    )
    assert p.environment.set == (("A", "b=c"), ("CI", "1"))
    assert p.environment.pass_ == ("LC_ALL",)
    assert p.origins["limits.memory"] == Origin("file", "saggar.toml", 7)
    assert p.origins["egress.allow[1].ports"] == Origin("file", "saggar.toml", 28)
    assert p.origins["environment.set.CI"] == Origin("file", "saggar.toml", 33)
    assert "limits.pids" not in p.origins


def test_empty_file_is_deny_all():
    assert parse("", "x").replace(file="") == default_policy()
    assert parse("# nothing\n", "x").egress.allow == ()


def rule(host="a.test", **more):
    out = f'[[egress.allow]]\nhost = "{host}"\n'
    return out + "".join(f"{k} = {v}\n" for k, v in more.items())


REFUSED = [
    # text, line, message, hint
    ("memory = 1", 1, "unknown key `memory` in the policy", "`memory` belongs to `[limits]`"),
    ("[limits]\nmemroy = 1", 2, "unknown key `memroy` in `[limits]`", "did you mean `memory`?"),
    ("[limts]", 1, "unknown key `limts` in the policy", "did you mean `limits`?"),
    ("[limits.memory]", 1, "`limits.memory`: expected a size, not a table", ""),
    ("[limits]\n\n'x y' = 1", 3, 'unknown key `"x y"` in `[limits]`', "the keys here are"),
    ("limits = 3", 1, "`limits`: expected a table, not an integer", ""),
    ('[limits]\nmemory = "1 gig"', 2, "`limits.memory`: `1 gig` is not a size", "KiB"),
    ('[limits]\nmemory = "1.5"', 2, "`limits.memory`: `1.5` is not a size", "KiB"),
    ('[limits]\nmemory = "1gib"', 2, "`1gib` is not a size", "GiB"),
    ("[limits]\nmemory = 5", 2, "`5` is less than the 4MiB that a program needs to start", "`512MiB`"),
    ('[limits]\nmemory = "1e9B"', 2, "is not a size", ""),
    ('[limits]\nmemory = "-1GiB"', 2, "is not a size", ""),
    ('[limits]\nmemory = "1.2.3GiB"', 2, "is not a size", ""),
    ('[limits]\nmemory = "1.3B"', 2, "not a whole number of bytes", ""),
    ('[limits]\nmemory = "٣GiB"', 2, "is not a size", ""),
    ("[limits]\nmemory = 1.5", 2, "expected a size, not a float", ""),
    ("[limits]\nmemory = 0", 2, "is not between 1B and 1024TiB", ""),
    ("[limits]\nmemory = -5", 2, "is not between 1B and 1024TiB", ""),
    ("[limits]\nmemory = true", 2, "expected a size, not a boolean", ""),
    ("[limits]\ntasks = true", 2, "expected an integer, not a boolean", ""),
    ('[limits]\ntasks = "64"', 2, "expected an integer, not a string", ""),
    ("[limits]\ntasks = 0", 2, "`0` is not between 1 and 4194304", ""),
    ("[limits]\ncpus = nan", 2, "is not between", ""),
    ("[limits]\ncpus = inf", 2, "is not between", ""),
    ('[limits]\ntimeout = "10"', 2, "`10` is not a duration", "ms, s, m, h, d"),
    ('[limits]\ntimeout = "10min"', 2, "is not a duration", ""),
    ('[limits]\ntimeout = "never"', 2, "is not a duration", ""),
    ("[limits]\ntimeout = 0", 2, "is not between 1ms and 366d", ""),
    ("[limits]\ntimeout = nan", 2, "is not between 1ms and 366d", ""),
    ("[limits]\ntimeout = 2026-01-01", 2, "expected a duration, not a date or time", ""),
    ('[limits]\nrequire = "hope"', 2, "`hope` is not one of `any`, `enforced`", ""),
    ('[isolation]\ntier = "Process"', 2, "`Process` is not one of `auto`, `process`", ""),
    ("[isolation]\ntier = 1", 2, "expected one of `auto`", ""),
    ('[isolation]\nread = "/opt"', 2, "expected an array, not a string", ""),
    ('[isolation]\nread = [\n"/opt",\n"opt"]', 4, "`isolation.read[1]`: `opt` is not an absolute path", ""),
    ('[isolation]\nread = ["/opt", "/opt/"]', 2, "`/opt/` stands here twice", ""),
    ('[isolation]\nread = ["/"]', 2, "cannot be shown inside", ""),
    ('[isolation]\nread = ["/proc/1"]', 2, "cannot be shown inside", ""),
    ('[isolation]\nread = ["/a/../etc"]', 2, "has `.` or `..` in it", ""),
    ('[isolation]\nread = ["/a\\u0000b"]', 2, "NUL", ""),
    ('[workspace]\nmode = "rw"', 2, "`rw` is not one of `copy-on-write`", ""),
    ('[workspace]\npath = "."', 2, "`.` is not an absolute path", ""),
    ("[workspace]\nunsafe_broad = 1", 2, "expected `true` or `false`, not an integer", ""),
    ('[workspace]\nprotect = ["../x"]', 2, "not a path below the workspace", ""),
    ("[egress]\nallow = true", 2, "expected an array of tables, not a boolean", ""),
    ('[egress]\nallow = ["a.test"]', 2, "`egress.allow[0]`: expected a table, not a string", ""),
    ('[[egress.allow]]\nhots = "a.test"', 2, "unknown key `hots` in `[egress.allow[0]]`", "did you mean `host`?"),
    ("[[egress.allow]]\nports = [443]", 1, "`egress.allow[0]`: `host` is missing", "add `host"),
    ("[[egress.allow]]\nhost = 1", 2, "expected a string, not an integer", ""),
    (rule("a.test", port=443), 3, "unknown key `port` in `[egress.allow[0]]`", "did you mean `ports`?"),
    (rule("a.test", ports="443"), 3, "expected an array, not an integer", ""),
    (rule("a.test", ports="[]"), 3, "a rule without ports allows nothing", ""),
    (rule("a.test", ports="[0]"), 3, "`0` is not between 1 and 65535", ""),
    (rule("a.test", ports="[443, 443]"), 3, "`443` stands here twice", ""),
    (rule("a.test", ports='["https"]'), 3, "expected an integer, not a string", ""),
    (rule("a.test", methods='["GET"]', id='"x y"'), 4, "`x y` is not an id", ""),
    (rule("192.0.2.1"), 2, "the host is an IP literal", "connect_to"),
    (rule("[::1]"), 2, "the host is an IP literal", ""),
    (rule("127.1"), 2, "is a number", ""),
    (rule("0x7f000001"), 2, "is a number", ""),
    (rule("a.test."), 2, "ends with a dot", ""),
    (rule("a..test"), 2, "empty label", ""),
    (rule("https://a.test/"), 2, "byte 0x3a", ""),
    (rule("a.test:443"), 2, "byte 0x3a", ""),
    (rule("evil.test\\u0000.a.test"), 2, "NUL", ""),
    (rule("ａ.test"), 2, "U+FF41", ""),
    (rule("xn--a.test"), 2, "punycode", ""),
    (rule(""), 2, "empty", ""),
    (rule("localhost"), 2, "always means the inside of the sandbox", "connect_to"),
    (rule("x.localhost"), 2, "always means the inside of the sandbox", ""),
    (rule("*"), 2, "`*` stands only", ""),
    (rule("*.com"), 2, "`*` stands only", ""),
    (rule("*.co.uk"), 2, "`co.uk` is a public suffix", "below one owner's name"),
    (rule("*.github.io"), 2, "`github.io` is a public suffix", ""),
    (rule("*.googleapis.com"), 2, "is a public suffix", ""),
    (rule("*.blob.core.windows.net"), 2, "is a public suffix", ""),
    (rule("*.s3.amazonaws.com"), 2, "is a public suffix", ""),
    (rule("*.amazonaws.com"), 2, "`amazonaws.com` is above the public suffix", ""),
    (rule("*.core.windows.net"), 2, "is above the public suffix", ""),
    (rule("a*b.test"), 2, "`*` stands only", ""),
    (rule("api.*.test"), 2, "`*` stands only", ""),
    (rule("*.wild.test", ports="[443, 22]"), 3, "a wildcard reaches ports 80 and 443 only, not 22", ""),
    (rule("metadata.google.internal"), 2, "metadata service", "allow_metadata"),
    (rule("instance-data"), 2, "metadata service", ""),
    (rule("*.google.internal"), 2, "metadata service", ""),
    (rule("a.test", connect_to='"localhost:80"'), 3, "is not an address literal", "127.0.0.1:8443"),
    (rule("a.test", connect_to='"127.1:80"'), 3, "is not an address literal", ""),
    (rule("a.test", connect_to='"::1:80"'), 3, "is not an address and a port", ""),
    (rule("a.test", connect_to='"[fe80::1%lo]:80"'), 3, "zone", ""),
    (rule("a.test", connect_to='"127.0.0.1:0"'), 3, "not between", ""),
    (rule("a.test", connect_to='"127.0.0.1:٨"'), 3, "is not a port", ""),
    (rule("a.test", connect_to='"127.0.0.1"'), 3, "is not an address", ""),
    (rule("a.test") + rule("A.test"), 3, "`a.test:443` is allowed twice, first on line 1", "remove"),
    (rule("a.test") + rule("a.test", connect_to='"127.0.0.1:1"'), 3, "two rules for `a.test:443` disagree, the other one is on line 1", "merge"),
    (rule("a.test", ports="[80]") + rule("a.test", ports="[81, 80]", allow_metadata="true"), 4, "disagree", ""),
    (rule("a.test", id='"x"') + rule("b.test", id='"x"'), 6, "the id `x` is taken by rule 0", ""),
    ("[environment]\nset = 1", 2, "expected a table, not an integer", ""),
    ("[environment.set]\nA = 1", 2, "`environment.set.A`: expected a string, not an integer", ""),
    ('[environment.set]\n"A=B" = "x"', 2, "is not the name of a variable", ""),
    ('[environment]\npass = ["A", "A"]', 2, "stands here twice", ""),
    ('[limits]\nmemory = "1GiB"\nmemory = "2GiB"', 3, "cannot overwrite a value", ""),
    ("[limits]\n[limits]", 2, "cannot declare", ""),
    ("x =", 1, "invalid value", ""),
    ("[limits]\ntasks = ", 2, "invalid value", ""),
    ("a = " + "[" * 9000, 0, "nested too deeply", ""),
    ("a = " + "9" * 5000, 0, "a number is too long", ""),
    ("# \n" * 600_000, 0, "longer than 1 MiB", ""),
    ("\n" + "a." * 10_000 + "a = 1", 2, "a line is longer than 16384 characters", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"), REFUSED, ids=[f"{i}:{r[2][:40]}" for i, r in enumerate(REFUSED)]
)
def test_i1_refused_with_line_and_hint(text, line, message, hint):
    problems = check(text, "saggar.toml")
    match = [p for p in problems if p.line == line and message in p.message]
    assert match, [str(p) for p in problems]
    assert hint in match[0].hint
    with pytest.raises(UsageError, match=r"^saggar\.toml:"):
        parse(text, "saggar.toml")


@pytest.mark.parametrize(
    "text",
    [
        ("a." * 8000 + "a = 1\n") * 20,
        "[[egress.allow]]\n" * 20_000,
        "a = [" + "1,\n" * 60_000 + "]",
        "\n".join(f"[a{i}]" for i in range(20_000)),
        "".join(f"k{i} = 1\n" for i in range(20_000)),
        ("[" + "a." * 8000 + "a]\n") * 20,
        "x = " + "[" * 400 + "]" * 400,
    ],
)
def test_i1_bounded_time(text):
    start = time.perf_counter()
    assert 0 < len(check(text, "f")) <= 100
    assert time.perf_counter() - start < 20


def test_every_problem_is_told_in_order():
    problems = check("[limits]\nmemroy = 1\n[[egress.allow]]\nhost = 'x y'\n[isolation]\ntier = 'x'\n", "f")
    assert [p.line for p in problems] == [2, 4, 6]


ACCEPTED = [
    ('[limits]\nmemory = "1.5 GiB"', lambda p: p.limits.memory_bytes == 3 * GIB // 2),
    ('[limits]\nmemory = "500MB"', lambda p: p.limits.memory_bytes == 500_000_000),
    ('[limits]\ntimeout = "none"', lambda p: p.limits.timeout_s is None),
    ("[limits]\ntimeout = 1.5", lambda p: p.limits.timeout_s == 1.5),
    ('[limits]\ntimeout = "250ms"', lambda p: p.limits.timeout_s == 0.25),
    ("limits.tasks = 3", lambda p: p.limits.tasks == 3),
    ('egress.allow = [{ host = "a.test" }]', lambda p: p.egress.allow[0].host == "a.test"),
    (rule("bücher.example"), lambda p: p.egress.allow[0].host == "xn--bcher-kva.example"),
    (rule("a.test") + rule("a.test", ports="[80]"), lambda p: len(p.egress.allow) == 2),
    (rule("*.wild.test") + rule("a.wild.test", connect_to='"127.0.0.1:1"'), lambda p: len(p.egress.allow) == 2),
    (rule("a.test", connect_to='"[::1]:80"'), lambda p: p.egress.allow[0].connect_to == ("::1", 80)),
    (rule("metadata.google.internal", allow_metadata="true"), lambda p: p.egress.allow[0].allow_metadata),
    (rule("*.myproject.github.io"), lambda p: p.egress.allow[0].host == "*.myproject.github.io"),
    ('[environment.set]\n"é" = "ü"', lambda p: p.environment.set == (("é", "ü"),)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "good"), ACCEPTED)
def test_accepted(text, good):
    assert good(parse(text, "f"))


@given(st.text(max_size=200))
def test_i1_policy_or_usage_error(text):
    for problem in check(text, "f"):
        assert isinstance(problem, UsageError)


scalars = st.one_of(
    st.integers(),
    st.booleans(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.just({}),
    st.just([{}]),
    st.none(),
)


@given(st.dictionaries(st.sampled_from(["isolation", "limits", "workspace", "egress", "environment"]),
       st.dictionaries(st.sampled_from(["tier", "read", "memory", "tasks", "cpus", "timeout", "path", "allow", "set", "pass", "mode", "protect"]), scalars)))  # fmt: skip
def test_i1_any_tree_is_a_policy_or_problems(tree):
    from saggar.policy.table import ROOT

    class Report:
        problems = 0

        def wrong(self, *_):
            self.problems += 1

        unknown = wrong
        came_from_file = where = staticmethod(lambda *_: "")

    report = Report()
    policy = ROOT.walk(tree, (), report)
    assert report.problems or policy is not None


# --- files and discovery


def test_load_file(tmp_path):
    path = tmp_path / "saggar.toml"
    path.write_text(FULL)
    assert load_file(str(path)).file == str(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no such file"),
        (lambda p: p.mkdir(), "not a regular file"),
        (lambda p: os.mkfifo(p), "not a regular file"),
        (lambda p: p.write_bytes(b"# ok\n\xff"), "not UTF-8"),
        (lambda p: p.write_bytes(b"#" * (1024 * 1024 + 1)), "longer than 1 MiB"),
    ],
)
def test_file_that_cannot_be_used(tmp_path, make, message):
    path = tmp_path / "p.toml"
    make(path)
    with pytest.raises(UsageError, match=message) as e:
        load_file(str(path))
    assert e.value.file == str(path)


def test_non_utf8_names_its_line(tmp_path):
    path = tmp_path / "p.toml"
    path.write_bytes(b"# ok\n\n\xff")
    with pytest.raises(UsageError) as e:
        load_file(str(path))
    assert e.value.line == 3


def test_i3_discovery(tmp_path):
    home = tmp_path / "home"
    own = home / ".config" / "saggar" / "saggar.toml"
    own.parent.mkdir(parents=True)
    env = {"HOME": str(home)}
    assert discover(None, env) is None
    assert discover(None, {}) is None
    own.write_text("")
    assert discover(None, env) == str(own)
    assert discover("x", env) == "x"
    assert discover(None, {**env, "SAGGAR_POLICY": "/p.toml"}) == "/p.toml"
    assert discover(None, {**env, "XDG_CONFIG_HOME": str(tmp_path)}) is None


def test_i3_only_naming_it_makes_a_policy_of_the_workspace_count(tmp_path):
    (tmp_path / "saggar.toml").write_text("[limits]\ntasks = 9\n")
    here = str(tmp_path)
    assert effective(None, {}, here).limits.tasks == 256
    assert effective(f"{here}/saggar.toml", {}, here).limits.tasks == 9
    elsewhere = {"SAGGAR_POLICY": f"{here}/saggar.toml"}
    assert effective(None, elsewhere, "/usr").limits.tasks == 9
    assert effective(None, elsewhere, here, workspace=":none").limits.tasks == 9
    for flags in (
        {"cwd": here},
        {"cwd": "/usr", "workspace": here},
        {"cwd": os.path.dirname(here), "workspace": tmp_path.name + ":read-only"},
    ):
        with pytest.raises(UsageError, match="lies in the workspace"):
            effective(None, elsewhere, **flags)
    (tmp_path / "saggar.toml").write_text(f"[workspace]\npath = '{here}'\n")
    with pytest.raises(UsageError, match="lies in the workspace"):
        effective(None, elsewhere, "/usr")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("sub", "/w/sub"),
        ("sub:read-only", "/w/sub"),
        (".", "/w"),
        ("../x", "/x"),
        ("/a", "/a"),
        (":read-only", ""),
        (None, ""),
    ],
)
def test_relative_workspace(given, path):
    assert effective(None, {}, "/w", workspace=given).workspace.path == path


@pytest.mark.parametrize(
    "how",
    [
        "direct",
        "dots",
        "link into",
        "link out of",
        "linked directory",
        "link through",
        "directory through",
        "home in workspace",
    ],
)
def test_i3_policy_in_the_workspace_is_refused(tmp_path, how):
    work = tmp_path / "work"
    work.mkdir()
    inside = work / "saggar.toml"
    inside.write_text("")
    (tmp_path / "safe.toml").write_text("")
    (tmp_path / "link.toml").symlink_to(inside)
    (work / "out.toml").symlink_to(tmp_path / "safe.toml")
    (tmp_path / "alias").symlink_to(work)
    env = {"SAGGAR_POLICY": str(inside)}
    if how == "dots":
        env = {"SAGGAR_POLICY": f"{tmp_path}/work/../work/saggar.toml"}
    elif how == "link into":
        env = {"SAGGAR_POLICY": str(tmp_path / "link.toml")}
    elif how == "link out of":
        env = {"SAGGAR_POLICY": str(work / "out.toml")}
    elif how == "linked directory":
        env = {"SAGGAR_POLICY": str(tmp_path / "alias" / "saggar.toml")}
    elif how == "link through":
        (tmp_path / "entry.toml").symlink_to(work / "out.toml")
        env = {"SAGGAR_POLICY": str(tmp_path / "entry.toml")}
    elif how == "directory through":
        (work / "hop").symlink_to(tmp_path)
        (tmp_path / "entry").symlink_to("work/hop")
        env = {"SAGGAR_POLICY": str(tmp_path / "entry" / "safe.toml")}
    elif how == "home in workspace":
        own = work / ".config" / "saggar" / "saggar.toml"
        own.parent.mkdir(parents=True)
        own.write_text("")
        env = {"HOME": str(work)}
    with pytest.raises(UsageError, match="lies in the workspace") as e:
        effective(None, env, str(work))
    assert "--policy" in e.value.hint


def test_loader_stays_off_the_run_path():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import saggar.policy.load as l; l.with_flags(l.default_policy(), allow=['a.test:80'], timeout='5m'); print(*sys.modules)"
    source = os.path.dirname(os.path.dirname(sys.modules["saggar.policy"].__path__[0]))
    out = subprocess.run(
        [sys.executable, "-I", "-c", code, source], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"tomllib", "re", "enum", "dataclasses", "typing", "publicsuffixlist", "ipaddress", "difflib", "unicodedata",
             "saggar.policy.table", "saggar.policy.positions"}  # fmt: skip
    assert not heavy & set(out)
