"""What slots have decoded, over decodings that run, that have ended, and resets."""

from __future__ import annotations

from wal2lake.publish.statistics import Counts, Statistics


def test_counts_of_all_decodings_are_summed_and_begin_anew_with_a_reset() -> None:
    all_of_them = Statistics()
    running = Counts(1, 100)
    with all_of_them.of("s", lambda: running):
        assert all_of_them.slot("s").counts == Counts(1, 100)
        running.total_txns, running.stream_bytes = 2, 7
        again = Counts(10, 0, 1, 2, 3)
        with all_of_them.of("s", lambda: again), all_of_them.of("other", Counts):
            assert all_of_them.slot("s").counts == Counts(12, 100, 1, 2, 10)
        assert all_of_them.slot("s").counts == Counts(12, 100, 1, 2, 10)
        assert all_of_them.slot("s").reset_at is None
        all_of_them.reset("s")
        assert all_of_them.slot("s").counts == Counts()
        running.total_txns += 5
    found = all_of_them.slot("s")
    assert (found.counts, found.reset_at is None) == (Counts(5), False)
    assert all_of_them.slot("other").counts == Counts()
    # Another slot of that name.
    all_of_them.forget("s")
    assert all_of_them.slot("s").counts == Counts()
    assert all_of_them.slot("s").reset_at is None
