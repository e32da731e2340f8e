from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from saggar.core.errors import ParseError
from saggar.core.label import Label, Source
from saggar.plan.provenance import Event, as_svg, as_text, sources

MAIL = Label(
    [Source("tool", "inbox", call="s1", field="[].body", principal="<eve>&")], readers=["me"], integrity="untrusted"
)
EVENTS = [
    Event("s1", "call", "inbox", (), MAIL, "allow", "labels_fit", "plan.labels"),
    Event("s2", "extract", "x", ("s1",), MAIL),
    Event("s3", "call", "send", ("s2", "gone"), MAIL, "ask", "untrusted_authority", "plan.authority"),
    Event("s4", "call", "send", ("s2",), MAIL, "ask", "untrusted_authority", "plan.authority", approved=True),
]


def test_text_shows_refusals_and_where_values_came_from():
    text = as_text(EVENTS)
    assert (
        "s3             call      send  <- s2, gone  [ask: untrusted_authority]  (untrusted: tool inbox.[].body by <eve>&)"
        in text
    )
    assert "approved" in text.splitlines()[3]
    assert as_text([]) == "no step was taken\n"


def test_picture_is_well_formed_whatever_the_names_are():
    root = ET.fromstring(as_svg(EVENTS))
    boxes = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("rx")]
    assert len(boxes) == 4
    assert [bool(b.get("stroke-dasharray")) for b in boxes] == [False, False, True, False]
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) == 3


def test_json_round_trip_and_what_is_refused():
    for event in EVENTS:
        assert Event.from_json(json.loads(json.dumps(event.to_json()))) == event
    for raw in (
        {},
        EVENTS[0].to_json() | {"kind": "exec"},
        EVENTS[0].to_json() | {"inputs": [1]},
        EVENTS[0].to_json() | {"effect": "maybe"},
    ):
        with pytest.raises(ParseError):
            Event.from_json(raw)


def test_a_chip_leaves_out_the_list_itself_and_is_short():
    many = Label([Source("tool", f"t{i}", field="x") for i in range(9)] + [Source("tool", "t", field="#")])
    assert sources(many) == "user: tool t0.x, tool t1.x, tool t2.x +6"
