"""Text of a sandbox's making, made harmless for a terminal. Pure; on the `saggar run` path.

I1  What comes out holds no control, no bidirectional and no invisible character, and no byte that is not UTF-8.
"""

from __future__ import annotations

# format characters that reorder or hide text: soft hyphen, ALM, zero-width, bidi marks, embeddings and isolates,
# invisible operators, BOM, interlinear marks, tags
_HIDDEN = ((0xAD, 0xAD), (0x61C, 0x61C), (0x180E, 0x180E), (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F),
           (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB), (0xE0000, 0xE007F))  # fmt: skip


def _escape(c: str) -> str:
    n = ord(c)
    if 0xDC80 <= n <= 0xDCFF:
        return f"\\x{n - 0xDC00:02x}"
    if n < 0x20 or 0x7F <= n < 0xA0:
        return f"\\x{n:02x}"
    if 0xD800 <= n <= 0xDFFF or any(low <= n <= high for low, high in _HIDDEN):
        return f"\\u{n:04x}" if n < 0x10000 else f"\\U{n:08x}"
    return c


def shown(raw: bytes | str, *, keep: str = "") -> str:
    """`raw` for a terminal: what is in `keep` stays, other controls and invisible characters become escapes (I1)."""
    text = raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep else _escape(c) for c in text)
