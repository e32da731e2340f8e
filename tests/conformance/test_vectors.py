"""docs/vectors is current, and this implementation is what it says."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest

from saggar.capability.constraint import from_json
from saggar.capability.grant import compile_capability, grant_from_json
from saggar.capability.narrower import narrower

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
SPEC = importlib.util.spec_from_file_location(
    "capability_vectors", os.path.join(ROOT, "scripts", "capability_vectors.py")
)
vectors = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(vectors)


def stored(name):
    with open(os.path.join(ROOT, "docs", "vectors", name)) as f:
        return f.read()


@pytest.mark.parametrize("name", list(vectors.FILES))
def test_current(name):
    assert stored(name) == vectors.text_of(name), "run `python scripts/capability_vectors.py`"


def test_the_files_alone_are_enough():
    """What another implementation would do: read the JSON, nothing of ours but the thing under test."""
    data = json.loads(stored("capabilities.json"))
    for case in data["capabilities"]:
        if "grant" in case:
            (grant,) = compile_capability(case["text"], vectors.declarations())
            assert grant == grant_from_json(case["grant"])
    data = json.loads(stored("constraints.json"))
    parsed = [from_json(c) for c in data["constraints"]]
    for c, allowed, under in zip(parsed, data["allows"], data["narrower_than"], strict=True):
        assert [c.allows(v) for v in data["values"]] == [i in allowed for i in range(len(data["values"]))]
        assert [narrower(c, p) for p in parsed] == [i in under for i in range(len(parsed))]
        # attenuation never widens, on these values
        for i in under:
            assert set(allowed) <= set(data["allows"][i])
