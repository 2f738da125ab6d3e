"""Sessions that CRIU can't make again are known beforehand, by its own rule."""

from __future__ import annotations

import pytest
from spotsurfer_agent.save.process_inspection import Member, lost_sessions

ROOT = (1, 0, 1)


@pytest.mark.parametrize(
    ("tree", "lost"),
    [
        ([(2, 1, 1), (3, 2, 1), (4, 3, 4), (5, 4, 4)], []),  # a shell with a program in a session of its own
        ([(9, 1, 7), (10, 9, 7)], []),  # its leader ended, and the first process took it in
        ([(2, 1, 1), (9, 2, 7)], [9]),  # the same below a subreaper
        ([(2, 1, 1), (9, 2, 7), (10, 9, 7)], [9]),  # who was born in it comes with it
        ([(2, 1, 2), (3, 2, 3), (4, 3, 2)], []),  # born before its parent began a session of its own
        ([(2, 1, 2), (3, 2, 3), (4, 3, 2), (5, 3, 1)], [5]),  # its parent can't have been born in two of them
        ([(2, 1, 7), (3, 2, 3), (4, 3, 7)], []),  # the same, with a leader that ended
    ],
)
def test_a_session_needs_a_leader_above(tree, lost):
    found = [Member(100 + inside, inside, parent, session) for inside, parent, session in [ROOT, *tree]]
    assert [m.inside for m in lost_sessions(found)] == lost
