"""Paths and text of a run's making. Cites protected I1, I2, shown I1, changes I3 and workspace_scan_host."""

import os
import shutil
import tempfile
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from saggar.isolation.changes import unified
from saggar.isolation.protected import components, fold, leaves_workspace, matches, protected
from saggar.isolation.shown import shown
from saggar.isolation.workspace_scan_host import Snapshot

INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u034f\ufe0f\u180e\U000e0020"
PROTECTED = st.sampled_from([
    ".git/hooks/pre-commit", ".git/config", ".vscode/tasks.json", ".envrc", "CLAUDE.md", ".mcp.json", "saggar.toml",
    ".github/workflows/ci.yml", ".bashrc", ".cursorrules", "a/b/.git/hooks/x", ".ssh/authorized_keys",
])  # fmt: skip


@given(path=PROTECTED, data=st.data())
def test_no_spelling_of_a_protected_path_is_free(path, data):
    """Case, invisible characters, full-width forms, trailing dots and blanks, in any mixture."""
    out = []
    for c in path:
        if c != "/":
            c = data.draw(st.sampled_from([c, c.upper(), c.lower()]))
            if "!" < c < "~" and data.draw(st.booleans()):
                c = chr(ord(c) + 0xFEE0)
            c = data.draw(st.sampled_from(["", "", *INVISIBLE])) + c
        out.append(c)
    name = "".join(out)
    tail = data.draw(st.sampled_from(["", ".", " ", "..", " ."]))
    spelled = "/".join(part + tail for part in name.split("/"))
    assert protected(spelled.encode()) == protected(path.encode()) != ""


@given(st.text(max_size=20))
def test_folding_twice_changes_nothing_more(text):
    once = fold(text.replace("/", ""))
    assert fold(once) == fold(fold(once))


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_have_an_answer(path, plain):
    assert isinstance(protected(path, plain=plain), str)
    assert isinstance(protected(path, in_git=path, plain=plain, extra=("a/**/b*", "**")), str)
    assert isinstance(leaves_workspace(path, path), bool)


@given(st.binary(max_size=60).filter(lambda b: b"\0" not in b), st.text(alphabet="ab*/", max_size=12))
def test_a_pattern_that_covers_a_path_covers_what_is_below(path, pattern):
    parts = components(path)
    if matches(parts, pattern):
        assert matches([*parts, "below"], pattern)


@given(st.binary(max_size=80) | st.text(max_size=80).map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_shown_text_is_harmless(raw):
    text = shown(raw)
    for c in text:
        assert unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp"), repr(c)
        assert unicodedata.bidirectional(c) not in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    assert shown(text) == text


@given(st.binary(max_size=400) | st.none(), st.binary(max_size=400) | st.none())
def test_a_diff_of_any_bytes_is_harmless(before, after):
    for line in unified(b"a\nb", before, after):
        assert all(c == "\t" or unicodedata.category(c) not in ("Cc", "Cs") for c in line)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_snapshot_parses(junk, path):
    for data in (junk, b"saggar-snapshot 1\n" + junk, b"saggar-snapshot 1\n1 2 3 4 5\n" + junk):
        found = Snapshot(data).directory(path)
        assert found is None or len(found) == 4


NAMES = st.sampled_from(["a", "b", "c"])
LINKS = st.lists(
    st.tuples(
        st.lists(NAMES, min_size=1, max_size=3),
        st.lists(st.sampled_from(["a", "b", "c", "..", "..", "."]), min_size=1, max_size=5),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=300, deadline=None)
@given(LINKS)
def test_links_that_stay_inside_stay_inside_together(links):
    """Whatever links there are: where each passed alone, no chain of them leads out."""
    top = os.path.realpath(tempfile.mkdtemp(prefix="saggar-test-", dir="/var/tmp"))
    try:
        os.makedirs(f"{top}/outer/ws/a/b/c", exist_ok=True)
        root = f"{top}/outer/ws"
        for where, target, slash in links:
            path = "/".join(where)
            text = "/".join(target) + ("/" if slash else "")
            if leaves_workspace(path.encode(), text.encode()):
                continue
            parent = f"{root}/{'/'.join(where[:-1])}"
            # as in a layer: the path of an entry goes through directories only
            if os.path.lexists(f"{root}/{path}") or os.path.realpath(parent) != parent.rstrip("/"):
                continue
            try:
                os.makedirs(parent, exist_ok=True)
                os.symlink(text, f"{root}/{path}")
            except OSError:
                continue  # below a link to nowhere
        for base, directories, files in os.walk(root):
            for name in [*directories, *files]:
                real = os.path.realpath(f"{base}/{name}")
                assert real == root or real.startswith(root + "/"), (base, name, real)
    finally:
        shutil.rmtree(top)
