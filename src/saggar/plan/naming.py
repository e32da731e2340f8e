"""Whether the user's own words name somebody, where that somebody chose his name himself.

I1  Character for character: no case folding, no normal form, no punctuation aside. A look-alike is another name.
I2  A name is a whole run of capitalised words inside a sentence (`Bob` is not in `Bob Smith`), or an address or a
    handle (`bob@x.test`, `@bob`). Common words are none: what a sentence begins with is capital for its place alone, so
    a run that begins a sentence names nobody.
I3  What this misses costs a question; what it took in error would be a stranger's word. It is still a text match: in
    `post it to Slack`, one who calls himself `Slack` is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

_OPEN = "\"'`([{<\u2018\u201c\u00ab"
_CLOSE = "\"'`)]}>\u2019\u201d\u00bb,;:"
_ENDS = ".!?"
_MAX_REQUEST = 1 << 16


def named_in(request: str, name: str) -> bool:
    """Whether the request names `name`, exactly and as a whole (I1, I2)."""
    return bool(name) and name in names_of(request[:_MAX_REQUEST])


@lru_cache(maxsize=64)
def names_of(request: str) -> frozenset[str]:
    """Every name, address and handle that stands in the request."""
    found: set[str] = set()
    for line in request.splitlines():
        found.update(_line(line))
    return frozenset(found)


def _line(line: str) -> Iterator[str]:
    run: list[str] = []
    first = fresh = True
    for token in line.split():
        word, opened, broken, ended = _peeled(token)
        if opened or not _capital(word):
            yield from _closed(run, first=first)
            run = []
        if "@" in word:
            yield word
            if word.startswith("@") and word.count("@") == 1:
                yield word[1:]
        elif _capital(word):
            first = fresh if not run else first
            run.append(word)
        if broken or ended:
            yield from _closed(run, first=first)
            run = []
        fresh = ended or (fresh and not word)
    yield from _closed(run, first=first)


def _closed(run: list[str], *, first: bool) -> Iterator[str]:
    if run and not first and (len(run) > 1 or len(run[0]) > 1):
        yield " ".join(run)


def _peeled(token: str) -> tuple[str, bool, bool, bool]:
    """The word; whether a bracket or quote opens it, whether punctuation or a possessive ends a name after it, and
    whether it ends a sentence."""
    word = token.lstrip(_OPEN)
    opened = word != token
    bare = word.rstrip(_CLOSE + _ENDS)
    tail = word[len(bare) :]
    ended = any(c in _ENDS for c in tail)
    for mark in ("'s", "\u2019s"):
        if bare.endswith(mark):
            return bare.removesuffix(mark), opened, True, ended
    return bare, opened, bool(tail), ended


def _capital(word: str) -> bool:
    return word[:1].isupper()
