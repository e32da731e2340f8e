"""A ClientHello builder for tests: every field can be wrong."""


def vector(width, data):
    return len(data).to_bytes(width, "big") + data


def sni(*names, kind=0):
    return 0, vector(2, b"".join(bytes([kind]) + vector(2, n) for n in names))


def alpn(*names):
    return 16, vector(2, b"".join(vector(1, n) for n in names))


ECH = 0xFE0D, b"\0" * 16


def body(*extensions, session=b"", suites=b"\x13\x01", compression=b"\0", tail=b""):
    fields = b"".join(kind.to_bytes(2, "big") + vector(2, data) for kind, data in extensions)
    head = b"\x03\x03" + b"r" * 32 + vector(1, session) + vector(2, suites) + vector(1, compression)
    return head + (vector(2, fields) if extensions else b"") + tail


def message(content, kind=1):
    return bytes([kind]) + len(content).to_bytes(3, "big") + content


def records(data, size=16384, version=b"\x03\x01"):
    return b"".join(b"\x16" + version + vector(2, data[i : i + size]) for i in range(0, len(data), size))


def hello(name=b"api.allowed.test", *more, **kwargs):
    return records(message(body(*([sni(name)] if name is not None else []), *more)), **kwargs)
