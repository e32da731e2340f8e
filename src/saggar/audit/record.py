"""One audit record as bytes.

I1  A line is the RFC 8785 form of the record, then one newline; `hash` is SHA-256 over the same form without `hash`.
I2  A line is at most `MAX_LINE` bytes: a longer `detail` is replaced by its digest and size, never cut in silence.
I3  No input of the sandbox's makes a record unwritable: what JSON cannot carry (lone surrogates, bytes, NaN, huge
    integers) is written as a string that shows it.
"""

from __future__ import annotations

from saggar.audit.canonical import encode_text, quote
from saggar.core.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class _Digest(Protocol):
        def hexdigest(self) -> str: ...

    sha256: Callable[[bytes], _Digest]
else:
    try:  # the built-in modules load in 0.2 to 0.7 ms, `hashlib` in 2.6
        from _sha256 import sha256
    except ImportError:
        try:
            from _sha2 import sha256
        except ImportError:
            from hashlib import sha256

#: canonical order, as RFC 8785 sorts them
FIELDS = ("detail", "effect", "hash", "kind", "layer", "prev", "reason", "rule", "seq", "task", "time")
#: `prev` of the first record
GENESIS = "0" * 64
MAX_LINE = 64 * 1024
#: room for every field but `detail`
MAX_DETAIL = MAX_LINE - 12 * 1024
_MAX_TEXT = 256
#: of a record beside what `Form` keeps: a hash, a number, a time, and the end
_REST = 64 + 16 + 27 + 2
_HEX = frozenset("0123456789abcdef")


def digest(data: bytes) -> str:
    """SHA-256 as 64 lower-case hexadecimal digits."""
    return sha256(data).hexdigest()


def is_digest(text: object) -> bool:
    """Whether `text` looks like what `digest` returns."""
    return type(text) is str and len(text) == 64 and _HEX.issuperset(text)


class Form:
    """A record but for its place in the chain and its time: nearly all the work of writing one, for those that recur.

    Never fails on what `detail` holds (I3). body: what `render` made of `detail`, if it was asked before.
    """

    __slots__ = ("_first", "_kind", "_task", "_words")

    def __init__(
        self,
        *,
        task: str,
        layer: str,
        kind: str,
        effect: str,
        reason: str,
        rule: str,
        detail: dict[str, Any],
        body: str | None = None,
    ) -> None:
        words = (effect, kind, layer, reason, rule, task)
        try:
            if body is None:
                body = encode_text(detail) if detail else "{}"
            fits = self._set(body, words) <= MAX_DETAIL
        except (ParseError, UnicodeEncodeError, TypeError):
            fits = False
        if not fits:
            self._set(_bounded(detail), tuple(str(plain(w))[:_MAX_TEXT] for w in words))

    def _set(self, body: str, words: tuple[str, ...]) -> int:
        """The pieces that do not change; how long a record of them is at most."""
        effect, kind, layer, reason, rule, task = map(quote, words)
        self._first = f'{{"detail":{body},"effect":{effect},'.encode()
        self._kind = f'"kind":{kind},"layer":{layer},"prev":"'.encode()
        self._words = f'","reason":{reason},"rule":{rule},"seq":'.encode()
        self._task = f',"task":{task},"time":"'.encode()
        return len(self._first) + len(self._kind) + len(self._words) + len(self._task) + _REST

    def line(self, seq: int, time: str, prev: str) -> tuple[bytes, str]:
        """The line of the record (newline included) and its hash."""
        first = self._first
        last = b'%b%b%b%d%b%b"}' % (self._kind, prev.encode(), self._words, seq, self._task, time.encode())
        hash_ = sha256(first + last).hexdigest()
        return b'%b"hash":"%b",%b\n' % (first, hash_.encode(), last), hash_


def build(
    *,
    seq: int,
    time: str,
    task: str,
    layer: str,
    kind: str,
    effect: str,
    reason: str,
    rule: str,
    detail: dict[str, Any],
    prev: str,
    body: str | None = None,
) -> tuple[bytes, str]:
    """The line of a record (newline included) and its hash, at once."""
    form = Form(task=task, layer=layer, kind=kind, effect=effect, reason=reason, rule=rule, detail=detail, body=body)
    return form.line(seq, time, prev)


def render(detail: dict[str, Any]) -> str | None:
    """`detail` as its record holds it: most of the work, and none of it depends on the record before. None: not plainly."""
    try:
        return encode_text(detail) if detail else "{}"
    except ParseError:
        return None


def _bounded(detail: Any) -> str:
    body = encode_text(plain(detail))
    whole = body.encode()
    if len(whole) <= MAX_DETAIL:
        return body
    return encode_text({"detail_bytes": len(whole), "detail_sha256": digest(whole), "detail_start": body[:1024]})


def plain(value: Any, depth: int = 0) -> Any:
    """`value` with everything that JSON cannot carry turned into a string that shows it."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if value is None or value is True or value is False:
        return value
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("ascii", "backslashreplace")
    if isinstance(value, (dict, list, tuple)) and depth > 16:
        return "(nested too deeply)"
    if isinstance(value, dict):
        return {plain(k if isinstance(k, str) else repr(k)): plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, depth + 1) for v in value]
    if isinstance(value, (int, float)):
        try:
            encode_text(value)
        except ParseError:
            return _show(value)
        return value
    return _show(value)


def _show(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # somebody's __repr__, or an integer of more than 4300 digits
        text = f"<{type(value).__name__}>"
    return text[:_MAX_TEXT].encode("utf-8", "backslashreplace").decode()


def tail_of(line: bytes) -> tuple[int, str]:
    """(seq, hash) of a complete line of ours, newline left out. Raises `ParseError` unless the hash holds.

    Searches from the right: what follows `prev` cannot hold a bare quote, so text of the sandbox's cannot pose as it.
    """
    prev = line.rfind(b'"prev":"')
    hash_at = line.rfind(b'"hash":"', 0, prev)
    seq_at = line.rfind(b'"seq":')
    if hash_at < 0 or seq_at < prev or line[hash_at + 72 : hash_at + 74] != b'",':
        raise ParseError("not an audit record", reason="malformed")
    claimed = line[hash_at + 8 : hash_at + 72]
    seq = line[seq_at + 6 : line.find(b",", seq_at)]
    if not seq.isdigit() or len(seq) > 16:
        raise ParseError("not an audit record", reason="malformed")
    actual = digest(line[:hash_at] + line[hash_at + 74 :])
    if actual.encode() != claimed:
        raise ParseError("the record does not match its hash", reason="edited")
    return int(seq), actual
