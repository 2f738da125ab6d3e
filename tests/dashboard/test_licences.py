"""The queue's page says how many licences are in use, and who waits."""

from __future__ import annotations

from support.fake_service import FakeService
from support.in_process import client_of

from spotsurfer.model.licences import LicenceStatus
from spotsurfer.web.app import make_app
from spotsurfer.web.guard import Door

TOKEN = "a-token-of-some-length"


def test_the_queue_has_a_line_of_licences() -> None:
    service = FakeService()
    with client_of(make_app(service, Door(TOKEN))) as client:

        def line() -> list[str]:
            text = client.get("/queue", headers={"Authorization": f"Bearer {TOKEN}"}).text
            return [x for x in text.splitlines() if "icences" in x]

        assert line() == []
        trouble = "they can't be counted: <x>"
        service.licence_pools = [
            LicenceStatus("vcs", 4, 3, 1, [], [], 1, (), None, ""),
            LicenceStatus("route", 0, 0, 0, [], [], 0, ("x",), None, trouble),
        ]
        vcs = "<b>3</b> of 4 vcs in use (1 job waits)"
        route = "<b>0</b> of 0 route in use \N{EN DASH} they can&#39;t be counted: &lt;x&gt;"
        assert line() == [f'<p id="licences">Licences: {vcs}, {route}.</p>']
