"""Links in text that a model or a stranger wrote, made inert.

I1  After `defang` no link is left but those that stand in `permitted`, character for character.
I2  The change is visible and can be undone by a person: `hxxps://`, `[.]`.
I3  Linear in the text; no backtracking pattern.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

#: last labels that mail and chat programs turn into links without a scheme; a file name's suffix is not among them
COMMON_SUFFIXES = frozenset(
    [
        "com",
        "org",
        "net",
        "edu",
        "gov",
        "mil",
        "int",
        "info",
        "biz",
        "io",
        "ai",
        "app",
        "dev",
        "co",
        "me",
        "tv",
        "cc",
        "ly",
        "gg",
        "xyz",
        "site",
        "online",
        "shop",
        "store",
        "cloud",
        "tech",
        "page",
        "link",
        "click",
        "live",
        "top",
        "club",
        "vip",
        "work",
        "eu",
        "de",
        "uk",
        "us",
        "ca",
        "fr",
        "nl",
        "ch",
        "at",
        "it",
        "es",
        "pl",
        "ru",
        "cn",
        "jp",
        "kr",
        "in",
        "br",
        "au",
        "nz",
        "se",
        "no",
        "fi",
        "dk",
        "ie",
        "be",
        "onion",
    ]
)
_STOP = frozenset(" \t\r\n\f\v<>\"'`(){}|\\^,;\u00a0\u2003\u3000")
_TRAIL = ".!?:*_~]["


def words(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each run of characters that a link could consist of."""
    start = -1
    for i, c in enumerate(text):
        if c in _STOP:
            if start >= 0:
                yield start, i
            start = -1
        elif start < 0:
            start = i
    if start >= 0:
        yield start, len(text)


def links(text: str) -> list[tuple[int, int]]:
    """Where `text` has something that a program may make clickable."""
    found = []
    for first, last in words(text):
        start, end = first, last
        while end > start and text[end - 1] in _TRAIL:
            end -= 1
        while start < end and text[start] in "[*_~":
            start += 1
        inner = text.rfind("](", start, end)
        if start < end and is_link(text[start:end] if inner < 0 else text[inner + 2 : end]):
            found.append((start, end))
    return found


def is_link(word: str) -> bool:
    # mail programs take a full-width dot for a dot
    lowered = unicodedata.normalize("NFKC", word).casefold().replace("\u3002", ".")
    if "://" in lowered or lowered.startswith(("www.", "mailto:", "data:", "javascript:")):
        return True
    host, slash, _ = lowered.partition("/")
    host = host.partition(":")[0]
    if "@" in host:
        return False  # a mail address, which names a person; recipients are judged by role
    labels = host.split(".")
    if len(labels) < 2 or not all(labels):
        return False
    return labels[-1] in COMMON_SUFFIXES or (bool(slash) and labels[-1].isalpha())


def defang(text: str, permitted: str = "") -> str:
    """`text` with every link made inert that does not stand verbatim in `permitted` (I1)."""
    out, at = [], 0
    for start, end in links(text):
        link = text[start:end]
        out.append(text[at:start])
        out.append(link if link in permitted and _whole_word(link, permitted) else inert(link))
        at = end
    return "".join(out) + text[at:]


def inert(link: str) -> str:
    """Every dot and colon bracketed; nothing makes a link of the result."""
    for scheme in ("http", "HTTP", "Http"):
        link = link.replace(scheme, scheme.replace("tt", "xx").replace("TT", "XX"))
    return "".join(f"[{c}]" if c in ".:\u3002\uff0e\uff61\uff1a" else c for c in link)


def _whole_word(link: str, permitted: str) -> bool:
    """`evil.test/a` is not permitted because `not-evil.test/ab` is."""
    return any(permitted[s:e] == link for s, e in links(permitted))
