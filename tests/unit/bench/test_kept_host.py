"""What a killed run leaves, and what the next one makes of it."""

from __future__ import annotations

import json

import pytest

from saggar.bench.estimate import estimated, price
from saggar.bench.kept_host import Kept
from saggar.core.errors import UsageError


def kept(path, model="m", **more):
    held = Kept(str(path), model, "case", **more)
    held.load()
    return held


def test_what_is_done_is_known_the_next_time(tmp_path):
    first = kept(tmp_path / "r")
    first.add({"case": "a", "model": "m", "n": 1})
    first.add({"case": "b", "model": "m", "n": 2})
    assert kept(tmp_path / "r").done == first.done


@pytest.mark.parametrize("torn", [b'{"case": "c", "mo', b"{", b"\xff\xfe", b"null", b"[1]"])
def test_a_torn_last_line_costs_itself_alone(tmp_path, torn):
    kept(tmp_path / "r").add({"case": "a", "model": "m"})
    with open(tmp_path / "r", "ab") as f:
        f.write(torn)
    again = kept(tmp_path / "r")
    assert set(again.done) == {"a"}
    again.add({"case": "c", "model": "m"})
    assert set(kept(tmp_path / "r").done) == {"a", "c"}
    assert (tmp_path / "r").read_bytes().endswith(b'\n{"case": "c", "model": "m"}\n')


def test_another_model_s_results_are_refused(tmp_path):
    kept(tmp_path / "r").add({"case": "a", "model": "m"})
    with pytest.raises(UsageError, match="holds results of another model"):
        kept(tmp_path / "r", "other")


def test_some_are_made_anew(tmp_path):
    first = kept(tmp_path / "r")
    first.add({"case": "a", "model": "m", "status": "nobody there"})
    first.add({"case": "b", "model": "m", "status": "done"})
    again = kept(tmp_path / "r", again=lambda r: r["status"] != "done")
    assert set(again.done) == {"b"}
    again.add({"case": "a", "model": "m", "status": "done"})
    assert set(kept(tmp_path / "r", again=lambda r: r["status"] != "done").done) == {"a", "b"}


def test_no_file_is_memory_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    held = kept("")
    held.add({"case": "a", "model": "m"})
    assert set(held.done) == {"a"}
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        kept(tmp_path)


def test_estimate_and_price():
    assert estimated(2, 10, 1_000_000, 500_000, (1.0, 2.0))["cost"] == 2.0
    assert "cost" not in estimated(2, 10, 1, 1, None)
    assert price("0.15,0.6") == (0.15, 0.6)
    assert price(None) is None


@pytest.mark.parametrize("text", ["", "1", "1,2,3", "a,b", "-1,2", "nan,1", "1,inf"])
def test_what_is_no_price_is_refused(text):
    with pytest.raises(UsageError, match="two numbers"):
        price(text)


def test_lines_are_json(tmp_path):
    kept(tmp_path / "r").add({"case": "é\n", "model": "m"})
    assert json.loads((tmp_path / "r").read_text())["case"] == "é\n"


def test_a_file_that_cannot_be_written_is_found_out_first(tmp_path):
    for path in (tmp_path / "no" / "such", tmp_path):
        with pytest.raises(UsageError, match="cannot write"):
            Kept(str(path), "m", "case").ready()
    Kept("", "m", "case").ready()
    held = kept(tmp_path / "r")
    held.ready()
    held.add({"case": "a", "model": "m"})
    held.ready()
    assert set(kept(tmp_path / "r").done) == {"a"}
