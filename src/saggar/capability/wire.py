"""The gateway's protocol between processes, as bytes: framed JSON, strict both ways.

I1  A frame is four bytes of length (big-endian) and that many bytes of JSON, at most `MAX_FRAME`; `Frames` gives whole
    objects or `ParseError`, never more than one frame's memory beyond what was fed.
I2  An answer carries what a model may read and no more: status, value, the public line, ids. No reason of a refusal.
I3  A value that JSON does not have is turned into one by closed rules, or the call has failed.

Requests: `{"op":"call","token","tool","args","proof":{"call_id","iat","sig"}}`, `{"op":"tools","token"}`.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import enum
from collections.abc import Iterator, Mapping
from typing import Any

from saggar.audit import canonical
from saggar.capability.keys import b64, unb64
from saggar.capability.verify import Proof
from saggar.core.errors import ParseError
from saggar.core.tool import Outcome

MAX_FRAME = 8 * 1024 * 1024
_HEAD = 4


def frame(message: Mapping[str, Any]) -> bytes:
    """Raises `ParseError`."""
    body = canonical.encode(dict(message))
    if len(body) > MAX_FRAME:
        raise ParseError("a message longer than a frame", reason="frame_size")
    return len(body).to_bytes(_HEAD, "big") + body


class Frames:
    """Bytes in, messages out. After a `ParseError` the stream is done."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        self._data += data
        while len(self._data) >= _HEAD:
            size = int.from_bytes(self._data[:_HEAD], "big")
            if size > MAX_FRAME:
                raise ParseError("a frame that is too long", reason="frame_size")
            if len(self._data) < _HEAD + size:
                return
            body = bytes(self._data[_HEAD : _HEAD + size])
            del self._data[: _HEAD + size]
            message = canonical.decode(body)
            if type(message) is not dict:
                raise ParseError("a message that is no object", reason="frame_form")
            yield message


def call_request(token: str, tool: str, args: Mapping[str, Any], proof: Proof) -> dict[str, Any]:
    return {
        "op": "call",
        "token": token,
        "tool": tool,
        "args": dict(args),
        "proof": {"call_id": proof.call_id, "iat": proof.made, "sig": b64(proof.signature)},
    }


def proof_of(data: Any) -> Proof:
    """Raises `ParseError`."""
    if type(data) is not dict or data.keys() != {"call_id", "iat", "sig"}:
        raise ParseError("not a proof", reason="proof_form")
    call_id, made, sig = data["call_id"], data["iat"], data["sig"]
    if type(call_id) is not str or not 0 < len(call_id) <= 128 or type(made) is not int or type(sig) is not str:
        raise ParseError("not a proof", reason="proof_form")
    return Proof(call_id, made, unb64(sig))


def answer(outcome: Outcome) -> dict[str, Any]:
    """I2. A value that has no JSON form makes the answer a failure: the call is not undone, its result is lost."""
    out: dict[str, Any] = {"status": outcome.status, "call_id": outcome.call_id, "public": outcome.public}
    if outcome.status == "done":
        try:
            out["value"] = jsonable(outcome.value)
        except ParseError:
            return out | {"status": "failed", "public": "the tool failed"}
    if outcome.approval_id and outcome.status == "parked":
        out["approval_id"] = outcome.approval_id
    return out


def jsonable(value: Any, depth: int = 0) -> Any:
    """Dataclasses, mappings, sequences, dates, decimals, enumerations and bytes as JSON. Raises `ParseError` (I3)."""
    if depth > 32:
        raise ParseError("nested too deeply", reason="depth")
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, enum.Enum):
        return jsonable(value.value, depth + 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return {name: jsonable(getattr(value, name), depth + 1) for name in names}
    if isinstance(value, Mapping):
        if any(not isinstance(k, str) for k in value):
            raise ParseError("an object's key is not a string", reason="key_type")
        return {str(k): jsonable(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v, depth + 1) for v in value]
    if isinstance(value, set | frozenset):
        return sorted((jsonable(v, depth + 1) for v in value), key=canonical.encode_text)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return jsonable(dump(mode="json"), depth + 1)
    if isinstance(value, str):
        return str(value)
    raise ParseError(f"`{type(value).__name__}` has no JSON form", reason="type")
