"""Connections that wait to be accepted: they hinder no save, and those that are lost are lost with a word to their clients."""

from __future__ import annotations

import ipaddress
import socket
import struct

import pytest
from spotsurfer_agent.linux import sockets
from support.minibox import minibox

OWN = "10.201.0.2"


def connection(here: str, there: str, state: int = sockets.ESTABLISHED) -> sockets.Connection:
    (a, p), (b, q) = (x.rsplit(":", 1) for x in (here, there))
    sixth = ":" in a
    first, second = (ipaddress.ip_address(x).packed.ljust(16, b"\0") for x in (a, b))
    identity = struct.pack("!HH", int(p), int(q)) + first + second + bytes(12)
    return sockets.Connection(socket.AF_INET6 if sixth else socket.AF_INET, state, identity, 7)


@pytest.mark.parametrize(
    ("found", "lost"),
    [
        ([("127.0.0.1:5", "127.0.0.1:6"), ("127.0.0.1:6", "127.0.0.1:5")], []),
        ([("127.0.0.1:5", "127.0.0.1:6")], [0]),
        ([(f"{OWN}:5", f"{OWN}:6"), (f"{OWN}:6", f"{OWN}:5"), (f"{OWN}:7", f"{OWN}:6")], [2]),
        ([("::ffff:127.0.0.1:5", "::ffff:127.0.0.1:6"), ("127.0.0.1:6", "127.0.0.1:5")], []),
        ([("::1:5", "::1:6"), ("::1:6", "::1:5"), ("::1:8", "::1:6")], [2]),
        ([(f"{OWN}:5", "1.2.3.4:6")], [0]),
    ],
)
def test_a_connection_is_severed_where_its_other_end_is_not_there(found, lost):
    all_of_them = [connection(*x) for x in found]
    assert sockets.severed(all_of_them, OWN) == [all_of_them[i] for i in lost]


def test_one_that_is_being_closed_is_let_alone_unless_it_leads_outside():
    closing = 8  # CLOSE_WAIT: its reader has yet to see the end
    assert sockets.severed([connection("127.0.0.1:5", "127.0.0.1:6", closing)], OWN) == []
    outside = connection(f"{OWN}:5", "1.2.3.4:6", closing)
    assert sockets.severed([outside], OWN) == [outside]


@pytest.mark.real
@pytest.mark.parametrize("scene", ["within", "from_outside"])
def test_scene(tmp_path, scene):
    with minibox(tmp_path / "box", tmp_path / "store", module="support.queue_scenes") as box:
        box.run(scene)
