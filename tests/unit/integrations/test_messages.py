"""Twin of integrations.messages: messages of both formats in, results out; dicts and SDK-like objects alike."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from saggar.capability.desk_host import Purse
from saggar.integrations.messages import NO_CALL, ToolLoop
from saggar.testing.capability_desk import make_desk

CAPS = ["read:notes[day=2026-05-15]", "send:email[to=*@acme.com]"]


@pytest.fixture
def loop():
    desk, _, clock = make_desk(*CAPS)
    return ToolLoop(desk.gateway, Purse(desk.gateway, CAPS, clock=clock).token, tools=["read_notes", "send_email"])


def openai(*calls):
    return {
        "role": "assistant",
        "tool_calls": [
            {"id": f"c{i}", "type": "function", "function": {"name": n, "arguments": a}}
            for i, (n, a) in enumerate(calls)
        ],
    }


def test_tools_in_both_formats(loop):
    (first, *_), (other, *_) = loop.openai_tools(), loop.anthropic_tools()
    assert first["function"]["name"] == other["name"] == "read_notes"
    assert first["function"]["parameters"] == other["input_schema"]
    assert other["input_schema"]["required"] == ["day"]
    assert len(loop.openai_tools()) == 2


def test_openai(loop):
    message = openai(
        ("read_notes", '{"day":"2026-05-15"}'),
        ("read_notes", '{"day":"2026-05-16"}'),
        ("send_email", json.dumps({"to": "x@evil.example", "subject": "", "body": ""})),
        ("read_notes", '{"day":"2026-05-15","day":"2026-05-16"}'),
        ("read_notes", "[]"),
        ("read_notes", "not json"),
        ("pay", "{}"),
    )
    got = loop.openai_results(message)
    assert [(m["role"], m["tool_call_id"]) for m in got] == [("tool", f"c{i}") for i in range(7)]
    assert [m["content"] for m in got] == [
        '["note of 2026-05-15"]', "this call is not allowed", "this call is not allowed", NO_CALL, NO_CALL, NO_CALL, NO_CALL,
    ]  # fmt: skip
    assert loop.openai_results({"role": "assistant", "content": "hi"}) == []


def test_openai_objects(loop):
    call = SimpleNamespace(id="c", function=SimpleNamespace(name="read_notes", arguments='{"day":"2026-05-15"}'))
    assert loop.openai_results(SimpleNamespace(tool_calls=[call]))[0]["content"] == '["note of 2026-05-15"]'


def test_anthropic(loop):
    blocks = [
        {"type": "text", "text": "let me look"},
        {"type": "tool_use", "id": "t1", "name": "read_notes", "input": {"day": "2026-05-15"}},
        SimpleNamespace(type="tool_use", id="t2", name="read_notes", input={"day": 5}),
    ]
    got = loop.anthropic_results({"role": "assistant", "content": blocks})
    assert got == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": '["note of 2026-05-15"]'},
            {"type": "tool_result", "tool_use_id": "t2", "content": "this call is not allowed", "is_error": True},
        ],
    }
    assert loop.anthropic_results({"role": "assistant", "content": "done"}) is None


def test_a_loop_outlives_its_token():
    desk, log, clock = make_desk(*CAPS)
    seen = []
    loop = ToolLoop(
        desk.gateway, Purse(desk.gateway, CAPS, clock=clock).token, on_outcome=lambda n, o: seen.append((n, o.status))
    )
    for _ in range(5):
        loop.openai_results(openai(("read_notes", '{"day":"2026-05-15"}')))
        clock.advance(59)
    assert seen == [("read_notes", "done")] * 5
    assert len(log.of("capability.granted")) == 5


def test_both_formats_in_an_event_loop(loop):
    async def both():
        ours = await loop.aopenai_results(openai(("read_notes", '{"day":"2026-05-15"}'), ("pay", "{}")))
        block = {"type": "tool_use", "id": "t1", "name": "read_notes", "input": {"day": "x"}}
        return ours, await loop.aanthropic_results({"content": [block]})

    ours, theirs = asyncio.run(both())
    assert [m["content"] for m in ours] == ['["note of 2026-05-15"]', NO_CALL]
    assert theirs["content"][0]["is_error"]
