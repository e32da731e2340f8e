"""A body may be as large as it likes: it costs the broker no memory, and all of it arrives."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "..", "bench"))
import egress_body

SIZE = 256 * 1024 * 1024


def test_memory_is_flat_for_a_large_body_each_way_on_both_paths():
    found = egress_body.measure(SIZE)
    assert set(found) == {"tunnel_down", "tunnel_up", "model_down", "model_up"}
    for one in found.values():
        assert one["arrived"] == SIZE
        assert one["flat"], found
