"""Certificates of private authorities: from files to what machines are given."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.registry import authority

from spotsurfer.controller.machines import user_data
from spotsurfer.model.errors import ConfigError


def test_certificates_are_handed_on_and_nothing_else_of_the_file(tmp_path: Path) -> None:
    made = [authority(tmp_path / name, "IP:127.0.0.1") for name in ("a", "b")]
    plain = [(folder / "ca.pem").read_text() for folder in made]
    both = tmp_path / "both.pem"
    both.write_text(f"# ours\n{plain[0]}{(made[0] / 'ca.key').read_text()}{plain[1]}")
    assert user_data.read([both]) == "".join(plain)
    assert user_data.read([made[1] / "ca.pem", made[0] / "ca.pem"]) == plain[1] + plain[0]
    assert user_data.read([]) == ""


def test_what_is_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("hello")
    with pytest.raises(ConfigError, match=r"x\.pem holds no certificate in PEM"):
        user_data.read([tmp_path / "x.pem"])
    with pytest.raises(ConfigError, match=r"y\.pem can't be read: No such file"):
        user_data.read([tmp_path / "y.pem"])


def test_more_than_user_data_has_room_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = authority(tmp_path / "a", "IP:127.0.0.1") / "ca.pem"
    monkeypatch.setattr(user_data, "BYTES_MAX", len(made.read_text()))
    assert user_data.read([made]) == made.read_text()
    with pytest.raises(ConfigError, match="at most"):
        user_data.read([made, made])
