"""[notify] in the configuration: what is refused, and with which remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotsurfer.config.settings import load_settings
from spotsurfer.core.notifications import USUAL, Topic
from spotsurfer.model.errors import ConfigError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def loaded(folder: Path, text: str) -> ConfigError | None:
    (folder / "c.toml").write_text(text.replace("FOLDER", str(folder)))
    try:
        load_settings(folder / "c.toml")
    except ConfigError as e:
        return e
    return None


def test_all_keys(tmp_path: Path) -> None:
    (tmp_path / "urls").write_text("# the group\nmailto://a:b@example.org\n\nslack://x/y/z\n")
    (tmp_path / "secret").write_text(SECRET + "\n")
    (tmp_path / "c.toml").write_text(
        f"""
[notify]
urls = ["json://localhost"]
urls_file = "{tmp_path}/urls"
topics = ["held", "failed"]
gather = "2m"
again = "1h"
reclaims_min = 50
[[notify.webhooks]]
url = "https://example.org/hook?x=1"
secret_file = "{tmp_path}/secret"
kinds = ["ended"]
"""
    )
    told = load_settings(tmp_path / "c.toml").notify
    assert told.addresses() == ["json://localhost", "mailto://a:b@example.org", "slack://x/y/z"]
    rules = told.as_rules()
    assert (tuple(rules.topics), rules.gather_seconds, rules.again_seconds) == ((Topic.HELD, Topic.FAILED), 120.0, 3600.0)
    assert rules.reclaims_min == 50
    assert told.webhooks[0].secret() == SECRET


def test_nobody_is_told_unless_asked() -> None:
    told = load_settings().notify
    assert (told.addresses(), told.webhooks, tuple(told.topics)) == ([], (), USUAL)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('[notify]\ntopics = ["reclaim"]', "Did you mean 'reclaims'?"),
        ('[[notify.webhooks]]\nurl = "https://x"\nsecret_file = "/s"\nkinds = ["end"]', "Did you mean 'ended'?"),
        ('[[notify.webhooks]]\nurl = "ftp://x"\nsecret_file = "/s"', "url"),
        ('[[notify.webhooks]]\nurl = "https://u:p@x/"\nsecret_file = "/s"', "url"),
        ('[[notify.webhooks]]\nurl = "https://x"\nsecret_file = "s"', "absolute path"),
        ('[notify]\nurl = "x"', "Did you mean 'urls'?"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, part: str) -> None:
    error = loaded(tmp_path, text)
    assert error is not None
    assert part in str(error)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(f'[notify]\nurls_file = "{tmp_path}/none"')
    with pytest.raises(ConfigError, match=r"urls_file .*none can't be read"):
        load_settings(tmp_path / "c.toml").notify.addresses()
