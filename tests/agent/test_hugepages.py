"""The setting of the machine is as it was once a job's GPU memory has moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsurfer_agent.gpu import suspend_resume


@pytest.mark.parametrize(("before", "after"), [("always [madvise] never", "madvise"), ("[always] madvise never", None)])
def test_it_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str | None) -> None:
    setting = tmp_path / "enabled"
    setting.write_text(before)
    monkeypatch.setattr(suspend_resume, "SETTING", setting)
    with pytest.raises(ValueError, match="a failed copy"), suspend_resume.huge_pages_everywhere(tmp_path):
        assert "always" in setting.read_text()
        raise ValueError("a failed copy")
    assert setting.read_text() == (after or before)
    assert [x.name for x in tmp_path.iterdir()] == ["enabled"]


def test_who_comes_after_a_kill_sets_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = tmp_path / "enabled"
    setting.write_text("always [madvise] never")
    monkeypatch.setattr(suspend_resume, "SETTING", setting)
    suspend_resume.put_huge_pages_back(tmp_path)
    killed = suspend_resume.huge_pages_everywhere(tmp_path)
    killed.__enter__()
    assert setting.read_text() == "always"
    suspend_resume.put_huge_pages_back(tmp_path)
    assert setting.read_text() == "madvise"
    suspend_resume.put_huge_pages_back(tmp_path)
    assert [x.name for x in tmp_path.iterdir()] == ["enabled"]


def test_where_it_can_not_be_written_all_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspend_resume, "SETTING", tmp_path / "none")
    with suspend_resume.huge_pages_everywhere(tmp_path / "nowhere"):
        pass
