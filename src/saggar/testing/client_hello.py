"""A ClientHello builder whose every field can be wrong, for tests and for `saggar bench egress`."""

from __future__ import annotations

Extension = tuple[int, bytes]

#: an encrypted_client_hello extension; real or GREASE looks the same from outside
ECH: Extension = (0xFE0D, b"\0" * 16)


def vector(width: int, data: bytes) -> bytes:
    """`data` behind its length in `width` bytes."""
    return len(data).to_bytes(width, "big") + data


def sni(*names: bytes, kind: int = 0) -> Extension:
    return 0, vector(2, b"".join(bytes([kind]) + vector(2, n) for n in names))


def alpn(*names: bytes) -> Extension:
    return 16, vector(2, b"".join(vector(1, n) for n in names))


def body(
    *extensions: Extension,
    session: bytes = b"",
    suites: bytes = b"\x13\x01",
    compression: bytes = b"\0",
    tail: bytes = b"",
) -> bytes:
    """The handshake message's content; without extensions there is no extensions field at all."""
    fields = b"".join(kind.to_bytes(2, "big") + vector(2, data) for kind, data in extensions)
    head = b"\x03\x03" + b"r" * 32 + vector(1, session) + vector(2, suites) + vector(1, compression)
    return head + (vector(2, fields) if extensions else b"") + tail


def message(content: bytes, kind: int = 1) -> bytes:
    return bytes([kind]) + vector(3, content)


def records(data: bytes, size: int = 16384, version: bytes = b"\x03\x01") -> bytes:
    """`data` in TLS handshake records of `size` bytes each."""
    return b"".join(b"\x16" + version + vector(2, data[i : i + size]) for i in range(0, len(data), size))


def hello(name: bytes | None = b"api.allowed.test", *more: Extension, size: int = 16384) -> bytes:
    """A well-formed first flight for `name`, None for one without a server name."""
    first = (sni(name),) if name is not None else ()
    return records(message(body(*first, *more)), size)
