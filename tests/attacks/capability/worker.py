"""A hostile worker: a real process with a socket, a key and a token, that tries to do more than it was given.

Reads one JSON line (socket path, token, seed), tries each attack, prints one JSON object: attack to what came back.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from dataclasses import replace

from saggar.capability.client_host import GatewayClient
from saggar.capability.grant import grant_from_json
from saggar.capability.keys import TOKEN_DOMAIN, PrivateKey, b64
from saggar.capability.mint import attenuate, block_hash
from saggar.capability.request import request_hash
from saggar.capability.token import SIGNED, parse
from saggar.capability.verify import prove
from saggar.capability.wire import call_request, frame
from saggar.core.errors import PeerError, UsageError

given = json.loads(sys.stdin.readline())
key = PrivateKey(bytes.fromhex(given["seed"]))
token = given["token"]
wide = [grant_from_json(g) for g in given["wide"]]
good = {"to": "bob@acme.com", "subject": "s", "body": "b"}
evil = good | {"to": "eve@evil.example"}
out: dict[str, object] = {}


def client(text=token, k=key):
    return GatewayClient(given["path"], text, k)


def attempt(name, function):
    try:
        reply = function()
        out[name] = reply.get("status", "error") if isinstance(reply, dict) else reply
        if isinstance(reply, dict) and reply.get("status") == "denied":
            assert set(reply) == {"status", "public", "call_id"}, reply
            assert reply["public"] == "this call is not allowed"
    except (PeerError, ConnectionError, BrokenPipeError):
        out[name] = "closed"
    except UsageError:
        out[name] = "refused by the library"


def forge(sealer, issuer=None, **changes):
    block = parse(token).blocks[0]
    claims = replace(block.claims, **changes) if issuer is None else replace(block.claims, issuer=issuer, **changes)
    payload = claims.to_bytes()
    return f"{SIGNED}{b64(payload)}.{b64(sealer.sign(TOKEN_DOMAIN, payload))}"


def child(**changes):
    leaf = parse(token).blocks[-1]
    claims = replace(
        leaf.claims, jti="f" * 32, issuer=key.public, holder=key.public, depth=leaf.claims.depth + 1,
        parent=block_hash(leaf), **changes,
    )  # fmt: skip
    payload = claims.to_bytes()
    return f"{token}~{b64(payload)}.{b64(key.sign(TOKEN_DOMAIN, payload))}"


def raw(data):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(given["path"])
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        got = s.recv(65536)
        return "closed" if not got else got.decode("latin-1")


def replay():
    made = prove(token, request_hash(given["task"], "send_email", good), key=key, call_id="once", wall=time.time())
    message = call_request(token, "send_email", good, made)
    c = client()
    return [c.request(message)["status"], c.request(message)["status"], client().request(message)["status"]]


def swapped_arguments():
    made = prove(token, request_hash(given["task"], "send_email", good), key=key, call_id="swap", wall=time.time())
    return client().request(call_request(token, "send_email", evil, made))


def stale_proof():
    made = prove(token, request_hash(given["task"], "send_email", good), key=key, call_id="old", wall=time.time() - 120)
    return client().request(call_request(token, "send_email", good, made))


attempt("allowed call", lambda: client().call("send_email", good))
attempt("other recipient", lambda: client().call("send_email", evil))
attempt("extra argument", lambda: client().call("send_email", good | {"bcc": "eve@evil.example"}))
attempt("list for text", lambda: client().call("send_email", good | {"to": ["bob@acme.com"]}))
attempt("other tool", lambda: client().call("pay", {"iban": "DE1", "amount": "1"}))
attempt("replay", replay)
attempt("arguments swapped under a proof", swapped_arguments)
attempt("stale proof", stale_proof)
attempt("own signature for the broker's", lambda: client(forge(key, grants=tuple(wide))).call("send_email", evil))
attempt("own key as issuer", lambda: client(forge(key, key.public, grants=tuple(wide))).call("send_email", evil))
attempt("widened child by the library", lambda: attenuate(token, wide, key=key, holder=key.public, random=os.urandom))
attempt("widened child by hand", lambda: client(child(grants=tuple(wide))).call("send_email", evil))
attempt("longer child by hand", lambda: client(child(expires=2_000_000_000)).call("send_email", good))
attempt("child for another task", lambda: client(child(task="task-2")).call("send_email", good))
attempt("narrower child", lambda: client(child()).call("send_email", good))
attempt("another worker's token", lambda: client(given["other"]).call("send_email", evil))
attempt("garbage", lambda: raw(b"\x00\x00\x00\x05hello"))
attempt("huge frame", lambda: raw(b"\xff\xff\xff\xff"))
attempt("deep json", lambda: raw(len(b"[" * 200000).to_bytes(4, "big") + b"[" * 200000))
attempt("unknown operation", lambda: raw(frame({"op": "mint", "token": token})))
attempt("no proof", lambda: raw(frame({"op": "call", "token": token, "tool": "send_email", "args": good})))


def client_local():
    c = client()
    made = prove(token, request_hash(given["task"], "send_email", good), key=key, call_id="loc", wall=time.time())
    return c.request(call_request(given["local"], "send_email", good, made))


attempt("a host's local token", client_local)


def spend_budget():
    return [client().call("send_email", good)["status"] for _ in range(6)]


attempt("more calls than the budget", spend_budget)
print(json.dumps(out))
