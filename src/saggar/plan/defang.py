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
_STARTS = ("//", "http:", "https:", "ftp:", "vbscript:", "tel:", "sms:", "intent:")
_ATTRIBUTES = ("=//", "=http:", "=https:")


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
        target = is_target(text, first)
        while not target and start < end and text[start] in "[*_~":
            start += 1
        if start < end and (target or is_link(text[start:end])):
            found.append((start, end))
    return found


def is_target(text: str, start: int) -> bool:
    """Whether what begins at `start` stands where markdown has a link's target: `](` before it, space or `<` between."""
    at = start
    while at > 0 and text[at - 1] in " \t\r\n<":
        at -= 1
    return text[max(at - 2, 0) : at] == "]("


def is_link(word: str) -> bool:
    # mail programs take a full-width dot for a dot
    lowered = unicodedata.normalize("NFKC", word).casefold().replace("\u3002", ".")
    if "://" in lowered or lowered.startswith(("www.", "mailto:", "data:", "javascript:")):
        return True
    # a browser needs no second slash after a scheme, and no scheme before two slashes, in an attribute neither
    if lowered.startswith(_STARTS) or any(mark in lowered for mark in _ATTRIBUTES):
        return True
    end = next((i for i, c in enumerate(lowered) if c in "/?#"), len(lowered))
    host, path = lowered[:end], lowered[end : end + 1] in ("/", "?")
    if "@" in host:
        # without a path a mail address, which names a person; recipients are judged by role
        return path and any("." in part.rpartition("]")[2] for part in host.split("["))
    host, port, _ = host.partition(":")
    labels = host.split(".")
    if len(labels) < 2 or not all(labels):
        return False
    if len(labels) == 4 and all(x.isdigit() for x in labels):
        return path or bool(port)
    return labels[-1] in COMMON_SUFFIXES or labels[-1].startswith("xn--") or (path and labels[-1].isalpha())


def defang(text: str, permitted: str = "") -> str:
    """`text` with every link made inert that does not stand verbatim in `permitted` (I1)."""
    out, at = [], 0
    for start, end in links(text):
        link = text[start:end]
        before = text[at:start]
        if link in permitted and _whole_word(link, permitted):
            out += [before, link]
        else:
            # a target with neither dot nor colon is a link by its place alone, so the place goes too
            out += [before.replace("](", "] (") if is_target(text, start) else before, inert(link)]
            # our own bracket and a parenthesis in the text would make a target
            out += [" "] if out[-1].endswith("]") and text[end : end + 1] == "(" else []
        at = end
    return "".join(out) + text[at:]


def inert(link: str) -> str:
    """Every dot and colon bracketed, whatever it looks like, and the slashes that need neither; nothing makes a link of
    the result."""
    for scheme in ("http", "HTTP", "Http"):
        link = link.replace(scheme, scheme.replace("tt", "xx").replace("TT", "XX"))
    out, slashes, before = [], 0, ""
    for c in link:
        plain = c if c.isascii() else unicodedata.normalize("NFKC", c).replace("\u3002", ".")
        slashes = slashes + 1 if plain == "/" else 0
        # two slashes are a link where a word or an attribute's value begins
        pair = slashes == 2 and before in ("", *"=[*_~")
        out.append(f"[{c}]" if pair or "." in plain or ":" in plain else c)
        before = before if slashes else plain
    return "".join(out)


def _whole_word(link: str, permitted: str) -> bool:
    """`evil.test/a` is not permitted because `not-evil.test/ab` is."""
    return any(permitted[s:e] == link for s, e in links(permitted))
