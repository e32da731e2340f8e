"""The task's CA as a database of NSS, which Chromium reads and nothing else can tell it (NSS's "sql:" form: `cert9.db` and `key4.db`, SQLite
tables of PKCS #11 objects, a column each attribute).

I1  It holds one certificate, trusted to sign servers (`C,,`), and no key.
I2  Nothing in it is signed: NSS checks the signature of a trust only where `key4.db` has a password, and this one is empty.

Written by hand, since the tool that does it (`certutil`) is on few hosts. PKCS #11 v3.1 has the objects, NSS's pkcs11n.h its own attributes.
"""

from __future__ import annotations

import hashlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: below the home directory
PLACE = ".pki/nssdb"
#: the attributes that NSS has a column for; it reads no database that lacks one
_COLUMNS = [
    "0",
    "1",
    "2",
    "3",
    "10",
    "11",
    "12",
    "80",
    "81",
    "82",
    "83",
    "84",
    "85",
    "86",
    "87",
    "88",
    "89",
    "8a",
    "8b",
    "90",
    "100",
    "101",
    "102",
    "103",
    "104",
    "105",
    "106",
    "107",
    "108",
    "109",
    "10a",
    "10b",
    "10c",
    "110",
    "111",
    "120",
    "121",
    "122",
    "123",
    "124",
    "125",
    "126",
    "127",
    "128",
    "129",
    "130",
    "131",
    "132",
    "133",
    "134",
    "160",
    "161",
    "162",
    "163",
    "164",
    "165",
    "166",
    "170",
    "180",
    "181",
    "200",
    "201",
    "202",
    "210",
    "300",
    "301",
    "302",
    "400",
    "401",
    "402",
    "403",
    "404",
    "405",
    "406",
    "480",
    "481",
    "482",
    "500",
    "501",
    "502",
    "503",
    "40000211",
    "40000212",
    "80000001",
    "ce534351",
    "ce534352",
    "ce534353",
    "ce534354",
    "ce534355",
    "ce534356",
    "ce534357",
    "ce534358",
    "ce534364",
    "ce534365",
    "ce534366",
    "ce534367",
    "ce534368",
    "ce534369",
    "ce534373",
    "ce534374",
    "ce536351",
    "ce536352",
    "ce536353",
    "ce536354",
    "ce536355",
    "ce536356",
    "ce536357",
    "ce536358",
    "ce536359",
    "ce53635a",
    "ce53635b",
    "ce53635c",
    "ce53635d",
    "ce53635e",
    "ce53635f",
    "ce536360",
    "ce5363b4",
    "ce5363b5",
    "d5a0db00",
]

_CLASS, _TOKEN, _PRIVATE, _LABEL, _VALUE, _TYPE, _ISSUER, _SERIAL, _SUBJECT, _ID, _MODIFIABLE = (
    "0", "1", "2", "3", "11", "80", "81", "82", "101", "102", "170",
)  # fmt: skip
_SERVERS, _CLIENTS, _CODE, _MAIL, _STEP_UP = "ce536358", "ce536359", "ce53635a", "ce53635b", "ce536360"
_SHA1, _MD5 = "ce5363b4", "ce5363b5"
_CERTIFICATE, _X509 = b"\0\0\0\1", b"\0\0\0\0"
_TRUST, _SIGNS, _VERIFY, _UNKNOWN = b"\xceSCS", b"\xceSCR", b"\xceSCS", b"\xceSC["
_YES, _NO = b"\1", b"\0"
#: how NSS writes a value of no bytes
_EMPTY = b"\xa5\0\x5a"


def database(certificate: bytes, label: str) -> list[tuple[str, bytes]]:
    """(name, content) of the two files. certificate: DER."""
    import sqlite3  # some 5 ms, for hosts that have an NSS alone

    serial, issuer, subject, key = _parts(certificate)
    common = {_TOKEN: _YES, _PRIVATE: _NO, _MODIFIABLE: _YES, _ISSUER: issuer, _SERIAL: serial}
    found = {
        **common, _CLASS: _CERTIFICATE, _TYPE: _X509, _LABEL: label.encode(), _VALUE: certificate, _SUBJECT: subject,
        _ID: hashlib.sha1(key, usedforsecurity=False).digest(),
    }  # fmt: skip
    trust = {
        **common, _CLASS: _TRUST, _LABEL: _EMPTY, _SERVERS: _SIGNS, _CLIENTS: _UNKNOWN, _CODE: _VERIFY, _MAIL: _VERIFY, _STEP_UP: _NO,
        _SHA1: hashlib.sha1(certificate, usedforsecurity=False).digest(),
        _MD5: hashlib.md5(certificate, usedforsecurity=False).digest(),
    }  # fmt: skip
    made = []
    for name, table, rows in (("cert9.db", "nssPublic", (found, trust)), ("key4.db", "nssPrivate", ())):
        connection = sqlite3.connect(":memory:")
        try:
            for statement, values in _statements(table, rows):
                connection.execute(statement, values)
            connection.commit()
            made.append((name, connection.serialize()))
        finally:
            connection.close()
    return made


def _statements(table: str, rows: Sequence[dict[str, bytes]]) -> Iterator[tuple[str, tuple[bytes | int, ...]]]:
    columns = ", ".join(f"a{c}" for c in _COLUMNS)
    yield f"CREATE TABLE {table} (id PRIMARY KEY UNIQUE ON CONFLICT ABORT, {columns})", ()
    if not rows:
        yield "CREATE TABLE metaData (id PRIMARY KEY UNIQUE ON CONFLICT REPLACE, item1, item2)", ()
    for index, column in (("issuer", _ISSUER), ("subject", _SUBJECT), ("label", _LABEL), ("ckaid", _ID)):
        yield f"CREATE INDEX {index} ON {table} (a{column})", ()
    for number, row in enumerate(rows, 1):
        names, marks = ", ".join(f"a{c}" for c in row), ", ".join("?" * (len(row) + 1))
        # names are of this module, values are bound
        yield f"INSERT INTO {table} (id, {names}) VALUES ({marks})", (number, *row.values())  # noqa: S608


def _parts(certificate: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """(serial number, issuer, subject: DER each; public key's bits) of an X.509 version 3 certificate (RFC 5280 section 4.1)."""
    (whole,) = _members(certificate)
    members = _members(_members(_content(whole))[0])
    inner = _members(_content(members[0]))
    # version, serial, algorithm, issuer, validity, subject, key
    key = _members(_content(inner[6]))[1]
    return inner[1], inner[3], inner[5], _content(key)[1:]


def _members(data: bytes) -> list[bytes]:
    """The elements of a run of DER, whole."""
    found = []
    while data:
        start, size = _head(data)
        found.append(data[: start + size])
        data = data[start + size :]
    return found


def _content(element: bytes) -> bytes:
    start, size = _head(element)
    return element[start : start + size]


def _head(data: bytes) -> tuple[int, int]:
    """Where the content of the first element begins, and its length."""
    first = data[1]
    if first < 128:
        return 2, first
    count = first & 127
    return 2 + count, int.from_bytes(data[2 : 2 + count], "big")
