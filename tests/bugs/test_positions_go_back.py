"""A transaction that arrived after keepalives once took flush and apply back to the end of the
transaction before it: a message upstream for each, and a pg_stat_replication that ran backwards.
PostgreSQL's own subscriber never reports less than it has (send_feedback)."""

from __future__ import annotations

from wal2lake.model import Lsn
from wal2lake.receive.feedback import Feedback, FeedbackPositions


def test_a_position_that_followed_keepalives_does_not_go_back() -> None:
    feedback = Feedback(logged=Lsn(100), applied=Lsn(100))
    feedback.verified = Lsn(500)
    feedback.keepalive(Lsn(400))
    feedback.last_sent = feedback.positions()
    assert feedback.last_sent == FeedbackPositions(Lsn(400), Lsn(400), Lsn(400))
    feedback.data_arrived(Lsn(450))
    assert feedback.positions() == FeedbackPositions(Lsn(450), Lsn(400), Lsn(400))
    assert not feedback.worth_sending()
    feedback.data_logged(Lsn(450), open_transaction=False)
    assert feedback.positions() == FeedbackPositions(Lsn(450), Lsn(450), Lsn(400))
    assert feedback.worth_sending()
