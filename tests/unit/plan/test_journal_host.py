from __future__ import annotations

import os

import pytest

from saggar.core.errors import ParseError
from saggar.plan.journal_host import FileJournal


def test_entries_outlive_the_process_and_the_file_is_the_user_s_alone(tmp_path):
    path = str(tmp_path / "j")
    one = FileJournal(path)
    one.put("s1", {"state": "intent"})
    one.put("s1", {"state": "done", "value": "é"})
    one.close()
    assert os.stat(path).st_mode & 0o777 == 0o600
    two = FileJournal(path)
    assert two.get("s1") == {"state": "done", "value": "é"}
    assert two.get("s2") is None
    two.close()


def test_a_torn_last_line_is_dropped_and_writing_goes_on(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(b'{"key": "a", "entry": {"state": "done"}}\n{"key": "b", "ent')
    journal = FileJournal(str(path))
    assert journal.get("a") == {"state": "done"}
    assert journal.get("b") is None
    journal.put("b", {"state": "intent"})
    journal.close()
    again = FileJournal(str(path))
    assert again.get("b") == {"state": "intent"}
    again.close()


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b'{"key": 1, "entry": {}}\n', b'{"key": "a"}\n'])
def test_what_is_no_journal_is_refused(tmp_path, line):
    path = tmp_path / "j"
    path.write_bytes(line)
    with pytest.raises(ParseError):
        FileJournal(str(path))


def test_a_symlink_is_not_followed(tmp_path):
    (tmp_path / "real").write_bytes(b"")
    os.symlink(tmp_path / "real", tmp_path / "j")
    with pytest.raises(OSError):
        FileJournal(str(tmp_path / "j"))
