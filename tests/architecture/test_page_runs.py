"""The reader of pages finds what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.page_runs import blocks, reader, unlike

PAGE = """\
# A page

<!-- sh
made=ready
-->
```toml title="job.toml"
name = "x"
```

## First

```sh
sleep 60 &
cat job.toml
echo "box 12 is $made"
```

```text
name = "x"
box 7 is …
```

<!-- not run: there is no such place -->
```sh
exit 1
```

## Second

```sh
kill %1
act
echo done
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_a_page_is_typed_block_after_block(page: Path, tmp_path: Path) -> None:
    acts: list[str] = []
    with reader(tmp_path / "shell", tmp_path) as person:
        person.acts = {"act": lambda: acts.append("now")}
        said = person.follow(page).splitlines()
    assert (said[:2], said[-1]) == (['name = "x"', "box 12 is ready"], "done")
    assert acts == ["now"]
    assert [b.why_not for b in blocks(page) if not b.runs and b.language == "sh"] == ["there is no such place"]


@pytest.mark.parametrize(
    ("wrong", "right", "told"),
    [
        ("cat job.toml", "cat jub.toml", "page.md:12: failed"),
        ("box 7 is …", "box 7 was …", "nobody printed 'box 7 was …'"),
        ('name = "x"\nbox', 'name = "y"\nbox', "nobody printed 'name = \"y\"'"),
        ("box 7 is …\n", "", "nobody printed 'the end'"),
        ("kill %1", "kill %7", "page.md:30: failed"),
    ],
)
def test_a_mistake_is_found(page: Path, tmp_path: Path, wrong: str, right: str, told: str) -> None:
    assert wrong in PAGE
    page.write_text(PAGE.replace(wrong, right))
    with reader(tmp_path / "shell", tmp_path) as person, pytest.raises(AssertionError, match=told):
        person.acts = {"act": lambda: None}
        person.follow(page)


def test_a_command_that_lasts_too_long_is_found(page: Path, tmp_path: Path) -> None:
    page.write_text("```sh\nsleep 60\n```\n")
    with reader(tmp_path / "shell", tmp_path) as person, pytest.raises(AssertionError, match=r"longer than 0\.5 s"):
        person.follow(page, seconds=0.5)


@pytest.mark.parametrize(
    ("shown", "said", "wrong"),
    [
        ("a 1\nb", "a 17\nb\n", ""),
        ("a  1", "a 1", ""),
        ("…\nb", "a\na\nb\n", ""),
        ("a\n…", "a\nb\nc\n", ""),
        ("a\n…\nd", "a\nb\nc\n", "d"),
        ("a", "b", "a"),
        ("a", "a\nb", "the end"),
        ("took …s", "took 3.1s", ""),
        ("took 18s.", "took 1m02s.", ""),
        ("took 1.83s.", "took 18s.", ""),
        ("took 18s.", "took long.", "took 18s."),
    ],
)
def test_outputs_are_compared_as_people_do(shown: str, said: str, wrong: str) -> None:
    assert unlike(shown, said) == wrong
