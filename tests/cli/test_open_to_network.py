"""An operator is warned of what the network can reach, and of nothing else."""

from __future__ import annotations

import pytest

from spotsurfer.cli.commands.serve_and_doctor import _open_to_network


@pytest.mark.parametrize(
    ("listen", "front", "told"),
    [
        (None, "127.0.0.1", []),
        ("127.0.0.1:8470", "::1", []),
        ("[::1]:8470", "localhost", []),
        ("localhost:8470", "127.1.2.3", []),
        ("0.0.0.0:8470", "127.0.0.1", ["0.0.0.0:8470"]),
        ("[fd00::1]:8470", "::", ["[fd00::1]:8470", "::"]),
        (None, "0.0.0.0", ["0.0.0.0"]),
    ],
)
def test_what_others_can_reach_is_told(listen: str | None, front: str, told: list[str]) -> None:
    assert [place for place, _ in _open_to_network(listen, front)] == told
