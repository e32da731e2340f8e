"""Twin of approval.review_host, terminal_host, webhook, webhook_host and socket_host, with a gateway in front."""

from __future__ import annotations

import http.server
import json
import os
import pty
import socket
import threading
import traceback

import pytest

from saggar.approval.review_host import Callback, Review
from saggar.approval.socket_host import ApprovalSocket, send_answer
from saggar.approval.store_host import Store
from saggar.approval.terminal_host import Terminal, parse_reply
from saggar.approval.webhook import ASK_DOMAIN, HEADER, REPLY_DOMAIN, check_signature, reply_body, signature
from saggar.approval.webhook import parse_reply as parse_webhook
from saggar.approval.webhook_host import Webhook
from saggar.core.approval import Answer
from saggar.core.errors import ParseError, UsageError
from saggar.testing.capability_desk import make_desk

from .test_book import ask, yes

MAIL = {"to": "bob@acme.com", "subject": "s", "body": "b"}
CAPS = ("read:inbox[limit=*]", "send:email[to=*@acme.com]")


@pytest.fixture
def store(tmp_path):
    s = Store(str(tmp_path / "approvals.jsonl"))
    yield s
    s.close()


def tainted(approver):
    desk, log, _ = make_desk(*CAPS, approver=approver)
    token = desk.gateway.token(CAPS)
    assert desk.gateway.call(token, "read_inbox", {}).done
    return desk.gateway, token, log


class TestGatewayWithABook:
    def test_once_is_once(self, store):
        gateway, token, _ = tainted(Review(store, [Callback(lambda q: True, human=True)], timeout_s=0))
        assert gateway.call(token, "send_email", MAIL).done
        assert len(store.entries()) == 1
        assert gateway.call(token, "send_email", MAIL).done  # asked again
        assert len(store.entries()) == 2

    @pytest.mark.parametrize(("scope", "uses", "asked"), [("times", 3, 4), ("template", 1, 2), ("task", 1, 1)])
    def test_standing_approvals_ask_less(self, store, scope, uses, asked):
        said = Callback(lambda q: Answer("approved", q.args_hash, scope, uses, "me", "human", 60.0))
        gateway, token, log = tainted(Review(store, [said], timeout_s=0))
        for args in [MAIL] * 4 + [MAIL | {"subject": "other"}, MAIL | {"body": "other"}]:
            assert gateway.call(token, "send_email", args).done
        # times: the same call 3 times, then a new question each; template: any subject, but another body asks
        assert len(store.entries()) == asked
        spent = [r for r in log.of("approval.answer") if r["detail"]["standing"]]
        assert len(spent) == 6 - asked

    def test_parked_then_approved_then_resumed(self, store):
        gateway, token, log = tainted(Review(store, timeout_s=0))
        out = gateway.call(token, "send_email", MAIL)
        assert out.status == "parked"
        store.answer(out.approval_id, yes(store.entry(out.approval_id).question))
        assert gateway.call(token, "send_email", MAIL | {"body": "evil"}).status == "parked"  # not for another call
        assert gateway.call(token, "send_email", MAIL).done
        assert gateway.call(token, "send_email", MAIL).status == "parked"  # once
        assert len(log.of("capability.parked")) == 3

    @pytest.mark.parametrize("end", [ValueError, KeyboardInterrupt, OSError])
    def test_an_answer_after_the_asker_went_away_is_for_the_next(self, store, end):
        review = Review(store, [Callback(lambda q: (_ for _ in ()).throw(end))], timeout_s=0)
        q = ask()
        with pytest.raises(end):
            review.ask(q)
        assert [e.state for e in store.entries()] == ["parked"]
        store.answer("q1", yes(q))
        assert review.standing(ask("q2")).kind == "approved"
        assert review.standing(ask("q3")) is None

    def test_a_machine_does_not_answer_for_people(self, store):
        gateway, token, _ = tainted(Review(store, [Callback(lambda q: True)], timeout_s=0))
        assert gateway.call(token, "send_email", MAIL).status == "parked"

    def test_denied(self, store):
        gateway, token, _ = tainted(Review(store, [Callback(lambda q: False)], timeout_s=0))
        assert gateway.call(token, "send_email", MAIL).decision.reason == "approval_denied"

    def test_a_hundred_open_questions_are_enough(self, store, monkeypatch):
        from saggar.approval import review_host

        monkeypatch.setattr(review_host, "MAX_WAITING", 2)
        asked = []
        review = Review(store, [Callback(lambda q: asked.append(q.id))], timeout_s=0)
        for i in range(4):
            assert review.ask(ask(f"q{i}")).kind == "timeout"
        assert asked == ["q0", "q1"]

    def test_a_book_that_cannot_be_written_is_no_approval(self, store):
        gateway, token, _ = tainted(Review(store, [Callback(lambda q: True, human=True)], timeout_s=0))
        os.close(store._fd)
        store._fd = os.open("/dev/full", os.O_RDWR)
        assert gateway.call(token, "send_email", MAIL).status == "parked"


class TestSocket:
    def test_an_answer_over_the_socket_wakes_the_call(self, store, tmp_path):
        review = Review(store, timeout_s=30)
        server = ApprovalSocket(review, str(tmp_path / "s"))
        try:
            gateway, token, _ = tainted(review)
            out = []
            thread = threading.Thread(target=lambda: out.append(gateway.call(token, "send_email", MAIL)))
            thread.start()
            done = threading.Event()
            while not store.waiting():
                done.wait(0.01)
            question = store.waiting()[0].question
            with pytest.raises(UsageError, match="another call"):
                send_answer(server.path, question.id, Answer("approved", "0" * 64, reviewer_class="human"))
            assert send_answer(server.path, question.id, yes(question))
            thread.join(10)
            assert out[0].done
        finally:
            server.close()
        assert not send_answer(server.path, "x", yes(ask()))  # nobody listens

    @pytest.mark.parametrize(
        "line", [b"{}\n", b"[]\n", b"x\n", b'{"op":"approve_all"}\n', b'{"op":"answer","id":"x","answer":{}}\n']
    )
    def test_other_lines_change_nothing(self, store, tmp_path, line):
        server = ApprovalSocket(Review(store), str(tmp_path / "s"))
        try:
            with socket.socket(socket.AF_UNIX) as c:
                c.connect(server.path)
                c.sendall(line)
                assert "error" in json.loads(c.recv(4096))
            assert os.stat(server.path).st_mode & 0o777 == 0o600
        finally:
            server.close()


class TestTerminal:
    def talk(self, typed, question, timeout_s=5.0):
        master, slave = pty.openpty()
        try:
            terminal = Terminal(os.ttyname(slave), reviewer="me")
            out, shown = [], b""
            thread = threading.Thread(target=lambda: out.append(terminal.ask(question, timeout_s)))
            thread.start()
            while b"approve?" not in shown:
                shown += os.read(master, 4096)
            os.write(master, typed)
            thread.join(10)
            return out[0], shown.decode()
        finally:
            os.close(master)
            os.close(slave)

    def test_yes(self):
        answer, shown = self.talk(b"y\n", ask(human_only=True))
        assert answer == Answer("approved", "a" * 64, "once", 1, "me", "human", 60.0)
        assert "only a person may approve it" in shown

    def test_nonsense_is_asked_again(self):
        assert self.talk(b"yes please\nsure\nn\n", ask())[0].kind == "denied"

    def test_silence_is_no_answer(self):
        assert self.talk(b"", ask(), timeout_s=0.2)[0] is None

    def test_no_terminal_is_no_answer(self, tmp_path):
        path = tmp_path / "not-a-tty"
        path.write_text("y\n")
        assert Terminal(str(path)).ask(ask(), 1.0) is None
        assert Terminal(str(tmp_path / "missing")).ask(ask(), 1.0) is None

    @pytest.mark.parametrize(
        ("line", "scope", "uses"),
        [("y", "once", 1), ("YES", "once", 1), ("5", "times", 5), ("t", "template", 1), ("task", "task", 1)],
    )
    def test_replies(self, line, scope, uses):
        answer = parse_reply(line, ask(), "me")
        assert (answer.kind, answer.scope, answer.uses) == ("approved", scope, uses)

    @pytest.mark.parametrize("line", ["", " ", "ye", "1", "0", "100", "-2", "\u0665", "later", "yes no", "*"])
    def test_no_replies(self, line):
        assert parse_reply(line, ask(), "me") is None

    def test_no_template_without_an_axis(self):
        assert parse_reply("t", ask(template=""), "me") is None


SECRET = b"0123456789abcdef"


class TestWebhook:
    @pytest.fixture
    def hook(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                check_signature(SECRET, ASK_DOMAIN, self.headers[HEADER], body, self.server.now())
                header, reply = self.server.answer(json.loads(body)["question"])
                self.send_response(200)
                self.send_header(HEADER, header)
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_):
                pass

        import time

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        server.now = time.time
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        server.server_close()
        thread.join()

    def signed(self, body, now, secret=SECRET, domain=REPLY_DOMAIN):
        return signature(secret, domain, int(now), body), body

    def test_a_signed_reply(self, hook):
        hook.answer = lambda q: self.signed(reply_body(ask(), "approved"), hook.now())
        answer = Webhook(f"http://127.0.0.1:{hook.server_port}/a", SECRET).ask(ask(), 5)
        assert (answer.kind, answer.reviewer_class, answer.args_hash) == ("approved", "automatic", "a" * 64)

    @pytest.mark.parametrize(
        ("reply", "reason"),
        [
            (lambda s, now: s.signed(reply_body(ask(), "approved"), now, secret=b"x" * 16), "signature"),
            (lambda s, now: s.signed(reply_body(ask(), "approved"), now, domain=ASK_DOMAIN), "signature"),
            (lambda s, now: s.signed(reply_body(ask(), "approved"), now - 301), "signature_stale"),
            (lambda s, now: ("", reply_body(ask(), "approved")), "signature_form"),
            (lambda s, now: s.signed(reply_body(ask("q2"), "approved"), now), "reply_other_call"),
            (lambda s, now: s.signed(reply_body(ask(args="b" * 64), "approved"), now), "reply_other_call"),
            (lambda s, now: s.signed(reply_body(ask(), "maybe"), now), "reply_form"),
            (lambda s, now: s.signed(reply_body(ask(), "approved", scope="task"), now), "reply_form"),
            (lambda s, now: s.signed(b"[]", now), "reply_form"),
            (lambda s, now: s.signed(b"not json", now), "malformed"),
        ],
    )
    def test_what_does_not_count(self, reply, reason):
        header, body = reply(self, 2000)
        with pytest.raises(ParseError) as caught:
            parse_webhook(SECRET, header, body, ask(), 2000.0)
        assert caught.value.reason == reason

    def test_unreachable_is_no_answer(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            hook = Webhook(f"http://127.0.0.1:{s.getsockname()[1]}/", SECRET)
            assert hook.ask(ask(), 1) is None
        assert hook.last_reason == "unreachable"

    @pytest.mark.parametrize("url", ["http://192.0.2.1/", "ftp://127.0.0.1/", "https://u:p@hooks.example/", "x"])
    def test_addresses(self, url):
        with pytest.raises(UsageError):
            Webhook(url, SECRET)

    @pytest.mark.parametrize(
        "url",
        [
            "https://me:hunter2hunter2@hooks.example/",
            "https://hooks.example:hunter2/x",
            "https://[hunter2hunter2/x",
            "https://hooks.example/hunter2hunter2\r\nX-A: b",
            "https://hooks.example/hunter2hunter2\x00",
            "hunter2hunter2",
        ],
    )
    def test_no_error_shows_an_address(self, url):
        with pytest.raises(UsageError) as e:
            Webhook(url, SECRET)
        assert "hunter2" not in "".join(traceback.format_exception(e.value, chain=False, limit=0))

    def test_a_name_that_cannot_be_asked_is_no_answer(self):
        hook = Webhook(f"https://{'a' * 70}.example/hunter2", SECRET)
        assert hook.ask(ask(), 1) is None
        assert hook.last_reason == "unreachable"
