"""What the tests of plan sessions share: a place for the state of their own user's, and what was called."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def sessions(tmp_path, monkeypatch):
    """The state directory of this test's sessions."""
    path = tmp_path / "state"
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(path))
    return path


@pytest.fixture
def calls():
    return []


@pytest.fixture
def records(sessions):
    """A function: the id of a run to the records of its log."""

    def read(run):
        with open(sessions / "runs" / run / "audit.jsonl", encoding="utf-8") as log:
            return [json.loads(line) for line in log]

    return read
