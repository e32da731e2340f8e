"""Path and value patterns of the user, matched in time linear in the subject.

I1  A pattern matches the whole subject, never a prefix, suffix or part of it.
I2  `*` in a path stands for any run inside one segment; `**` as a whole segment for any number of segments.
I3  Matching costs at most `len(pattern parts) x len(subject)` byte comparisons; nothing backtracks over `*`.

No regular expressions: a pattern from a policy file must not be able to stop the broker.
"""

from __future__ import annotations

from dataclasses import dataclass

from saggar.core.errors import ParseError
from saggar.egress.path import canonical_path

LIMIT_CHARS = 1024
LIMIT_SEGMENTS = 64
LIMIT_STARS = 16


@dataclass(frozen=True, slots=True)
class Glob:
    """A pattern with `*` for any run of characters. parts: the literal pieces between the stars."""

    text: str
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Glob:
        """Raises ParseError for a pattern that is too long or has too many stars."""
        if len(text) > LIMIT_CHARS or text.count("*") > LIMIT_STARS:
            raise ParseError(
                f"pattern `{text[:40]}` is too long or has more than {LIMIT_STARS} stars", reason="bad_pattern"
            )
        while "**" in text:
            text = text.replace("**", "*")
        return cls(text, tuple(text.split("*")))

    def matches(self, subject: str) -> bool:
        return match_parts(self.parts, subject)


def match_parts(parts: tuple[str, ...], subject: str) -> bool:
    """Whether `subject` is the parts in order with anything between them: first anchored, last anchored, the middle
    ones leftmost-first, which is right for globs and needs no second try."""
    if len(parts) == 1:
        return subject == parts[0]
    first, last = parts[0], parts[-1]
    if len(subject) < len(first) + len(last) or not subject.startswith(first) or not subject.endswith(last):
        return False
    at, end = len(first), len(subject) - len(last)
    for part in parts[1:-1]:
        found = subject.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A pattern over a canonical path. runs: the segment globs between `**`; literal: set where there is no star."""

    text: str
    literal: str | None
    runs: tuple[tuple[tuple[str, ...], ...], ...]

    @classmethod
    def parse(cls, text: str) -> PathPattern:
        """Raises ParseError where the pattern does not begin with `/`, could never match a canonical path, or is too large."""
        if not text.startswith("/"):
            raise ParseError(f"path pattern `{text[:40]}` must begin with `/`", reason="bad_pattern")
        if len(text) > LIMIT_CHARS or text.count("*") > LIMIT_STARS or text.count("/") > LIMIT_SEGMENTS:
            raise ParseError(f"path pattern `{text[:40]}` is too large", reason="bad_pattern")
        _check(text, text[1:].split("/"))
        return cls.loose(text)

    @classmethod
    def loose(cls, text: str) -> PathPattern:
        """The same of a text that is not looked at: for a wider pattern than a policy's own."""
        segments = text[1:].split("/")
        if "*" not in text:
            return cls(text, text, ())
        runs: list[tuple[tuple[str, ...], ...]] = []
        run: list[tuple[str, ...]] = []
        for segment in segments:
            if segment == "**":
                runs.append(tuple(run))
                run = []
            else:
                run.append(tuple(segment.split("*")))
        runs.append(tuple(run))
        return cls(text, None, tuple(runs))

    def matches(self, path: str) -> bool:
        """path: canonical, see `path.canonical_path`."""
        if self.literal is not None:
            return path == self.literal
        return _match_runs(self.runs, path[1:].split("/"))


def _check(text: str, segments: list[str]) -> None:
    try:
        same = canonical_path(text.encode(), keep_slash=True) == text.encode()
    except ParseError as e:
        raise ParseError(f"path pattern `{text[:40]}` matches no canonical path: {e}", reason="bad_pattern") from e
    if not same:
        raise ParseError(
            f"path pattern `{text[:40]}` is not in canonical form and would match nothing", reason="bad_pattern"
        )
    if any("**" in s and s != "**" for s in segments):
        raise ParseError(f"path pattern `{text[:40]}`: `**` must be a whole segment", reason="bad_pattern")


def _run_at(run: tuple[tuple[str, ...], ...], segments: list[str], at: int) -> bool:
    return all(match_parts(parts, segments[at + i]) for i, parts in enumerate(run))


def _match_runs(runs: tuple[tuple[tuple[str, ...], ...], ...], segments: list[str]) -> bool:
    first, last = runs[0], runs[-1]
    if len(runs) == 1:
        return len(first) == len(segments) and _run_at(first, segments, 0)
    if len(segments) < len(first) + len(last):
        return False
    if not _run_at(first, segments, 0) or not _run_at(last, segments, len(segments) - len(last)):
        return False
    at, end = len(first), len(segments) - len(last)
    for run in runs[1:-1]:
        while at + len(run) <= end and not _run_at(run, segments, at):
            at += 1
        if at + len(run) > end:
            return False
        at += len(run)
    return True
