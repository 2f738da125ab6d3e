"""What the name of an image is pinned to, as `show` tells it."""

from __future__ import annotations

from spotsurfer_wire.container_image import Pins
from spotsurfer_wire.object_keys import image_key
from spotsurfer_wire.store.port import StoreError
from support.dict_store import DictStore

from spotsurfer.store.agent_reports import ImageDigests

NAME, DIGEST = "docker://registry.example/tool:1", "sha256:" + "ab" * 32


def test_a_pin_is_read_once_and_nothing_is_asked_for_a_job_without_an_image() -> None:
    store, asked = DictStore(), []
    store.before = lambda verb, key: asked.append((verb, key))
    digests = ImageDigests(store)
    assert digests.of("bare", "") == ""
    assert digests.of("job", NAME) == "", "no attempt has asked yet"
    Pins(store, "job").write(NAME, DIGEST, "amd64", 1)
    asked.clear()
    assert [digests.of("job", NAME) for _ in range(3)] == [DIGEST] * 3
    assert asked == [("get", image_key("job"))]


def test_a_store_that_fails_or_holds_rubbish_makes_it_unknown_only() -> None:
    store = DictStore()
    store.objects[image_key("job")] = b"rubbish"
    assert ImageDigests(store).of("job", NAME) == ""

    def fail(verb: str, key: str) -> None:
        raise StoreError(f"{verb} {key}")

    store.before = fail
    assert ImageDigests(store).of("job", NAME) == ""
