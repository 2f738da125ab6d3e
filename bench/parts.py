"""Parts of the benchmark: each plays its scenes and makes figures of what they tell."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator

from bench import machine
from bench.figures import TAIL, Figure, Raw, median, ratio
from bench.machine import scene
from bench.order import Order

LINK_BYTES_MAX = 1 << 30  # behind a link more of the same tells no more
FREEZES = "freeze", "criu_freeze", "criu dump to tmpfs"
RESTORE = "criu restore from tmpfs"
Part = Callable[[Order], Iterable[Figure]]


def _by_huge_pages(name: str, order: Order) -> Iterator[tuple[str, list[Raw]]]:
    """A scene on this machine as it is, then with huge pages as others have them: the tail of its keys, its rounds."""
    yield "", scene(order, name, order.size)["rounds"]
    if order.quick:
        return
    with machine.huge_pages(other := machine.other_huge_pages()) as could:
        if could:
            yield TAIL + other, scene(order, name, order.size)["rounds"]


def _against(rounds: list[Raw], ours: str, theirs: str, what: str) -> str:
    return f"{median(rounds, ours):.2f} s against {median(rounds, theirs):.2f} s of {what}"


def _freeze(order: Order) -> Iterable[Figure]:
    for tail, rounds in _by_huge_pages("freeze", order):
        raw = {"rounds": rounds, "by_engine": median(rounds, "freeze_by_engine")}
        yield Figure("freeze_ratio" + tail, ratio(rounds, "freeze", "criu_freeze"), _against(rounds, *FREEZES), raw)
        most = max(r["agent_above_idle_bytes"] for r in rounds)
        image = rounds[0]["image_bytes"]
        yield Figure("agent_memory_first_live_bytes" + tail, most, f"image {image:,} bytes", raw, image + (300 << 20))


def _unwatched(order: Order) -> Iterable[Figure]:
    rounds = scene(order, "unwatched", order.size)["rounds"]
    compared = f"{_against(rounds, *FREEZES)}; as on kernels before 6.8.10, where nothing can be copied ahead"
    yield Figure("freeze_ratio_without_watch", ratio(rounds, "freeze", "criu_freeze"), compared, {"rounds": rounds})


def _durable(order: Order) -> Iterable[Figure]:
    for tail, rounds in _by_huge_pages("durable", order):
        theirs = f"{median(rounds, 'criu_seconds'):.2f} s of criu dump to disk, synced"
        frozen = f"{median(rounds, 'durable'):.2f} s from the freeze on against {theirs}"
        ordered = f"{median(rounds, 'ordered'):.2f} s from the order on, what is copied ahead too, against {theirs}"
        yield Figure("durable_ratio" + tail, ratio(rounds, "durable", "criu_seconds"), frozen, {"rounds": rounds})
        yield Figure("durable_ratio_from_order" + tail, ratio(rounds, "ordered", "criu_seconds"), ordered, {"rounds": rounds})


def _second(order: Order) -> Iterable[Figure]:
    for tail, rounds in _by_huge_pages("second", order):
        raw = {"rounds": rounds, "by_engine": median(rounds, "freeze_by_engine")}
        yield Figure("second_freeze_ratio" + tail, ratio(rounds, "freeze", "criu_freeze"), _against(rounds, *FREEZES), raw)
        used, image = median(rounds, "agent_above_idle_bytes"), median(rounds, "image_bytes")
        compared = f"{used / 1e6:,.0f} MB for an image of {image / 1e6:,.0f} MB"
        yield Figure("second_rss_share" + tail, used / image, compared, raw)


def _final(order: Order) -> Iterable[Figure]:
    raw = scene(order, "final", order.size)
    image, ordered = raw["image_bytes"], raw["ordered"]
    yield Figure("agent_memory_final_bytes", raw["agent_above_idle_bytes"], f"image {image:,} bytes", raw)
    yield Figure("final_bytes_per_second", image / ordered, f"{ordered:.2f} s from the order on until it is durable", raw)


def _share(order: Order) -> Iterable[Figure]:
    for kind, tail in (("trainer", ""), ("heap", "_heap")):
        raw = scene(order, "share", order.size, kind)
        new, floor = raw["new_share"], raw["page_floor"]
        sent, image = raw["sent_bytes"] / 1e6, raw["image_bytes"] / 1e6
        compared = f"{kind}-like job; packed, {sent:,.0f} MB were sent for an image of {image:,.0f} MB"
        yield Figure("second_new_share" + tail, new, compared, raw)
        yield Figure("page_floor" + tail, floor, "pages that were nowhere in the first image", raw)
        yield Figure("second_new_share_above_floor" + tail, new - floor, compared, raw)


def _restore(order: Order) -> Iterable[Figure]:
    for tail, rounds in _by_huge_pages("restore", order):
        compared = _against(rounds, "first_line", "criu_seconds", RESTORE)
        yield Figure("restore_ratio" + tail, ratio(rounds, "first_line", "criu_seconds"), compared, {"rounds": rounds})


def _lazy(order: Order) -> Iterable[Figure]:
    for tail, rounds in _by_huge_pages("lazy", order):
        raw = {"rounds": rounds}
        yield Figure("lazy_first_seconds" + tail, median(rounds, "first_line"), "order to first new line", raw)
        compared = _against(rounds, "all_in", "criu_seconds", RESTORE)
        yield Figure("lazy_all_ratio" + tail, ratio(rounds, "all_in", "criu_seconds"), compared, raw)


def _stamps(order: Order) -> Iterable[Figure]:
    wrong = scene(order, "stamps", order.size)["wrong_pages"]
    compared = "lazy restores with fork, mremap, MADV_DONTNEED and threads, and with the server killed midway"
    yield Figure("lazy_wrong_pages", sum(wrong.values()), compared, wrong)


def _dirty(order: Order) -> Iterable[Figure]:
    megabytes = order.dirty_bytes >> 20
    size = min(order.size, 512 << 20)
    for fs, tail in (("btrfs", ""), ("ext4", "_without_snapshots")):
        rounds = scene(order, "dirty", size, megabytes, more_disk_bytes=3 * order.dirty_bytes, fs=fs)["rounds"]
        quiet, after, durable = (median(rounds, key) for key in ("freeze_quiet", "freeze_dirty", "durable"))
        compared = (
            f"{after:.2f} s with {megabytes} MB just written to {fs} against {quiet:.2f} s without, a job of {size >> 20} MB; "
            f"durable {durable:.1f} s after the freeze began"
        )
        yield Figure("scratch_dirty_freeze_growth_seconds" + tail, after - quiet, compared, {"rounds": rounds})


def _link(order: Order) -> Iterable[Figure]:
    size = min(order.size, LINK_BYTES_MAX)
    rounds = scene(order, "upload", size)["rounds"]
    sent, took = median(rounds, "wire_bytes"), median(rounds, "ordered")
    compared = f"{sent / 1e6:,.0f} MB of a job of {size >> 20} MB over the wire of 1 Gbit/s in {took:.2f} s, order to durable"
    yield Figure("link_use", median(rounds, "use"), compared, {"rounds": rounds})


def _lazy_link(order: Order) -> Iterable[Figure]:
    rounds = scene(order, "download", order.size)["rounds"]
    compared = f"order to first new line; all in after {median(rounds, 'all_in'):.2f} s"
    yield Figure("lazy_first_seconds_1gbit", median(rounds, "first_line"), compared, {"rounds": rounds})


def _repos(order: Order) -> Iterable[Figure]:
    for tail, rounds in _by_huge_pages("repos", order):
        raw, ours, dump = {"rounds": rounds}, median(rounds, "ordered"), median(rounds, "dump")
        restic, borg = median(rounds, "restic"), median(rounds, "borg")
        freeze, disk = median(rounds, "freeze"), median(rounds, "disk")
        floor = f"{freeze:.2f} s of ours are the freeze, {disk:.2f} s the disk alone takes for as much"
        theirs = f"restic {restic:.2f} s, borg {borg:.2f} s, each behind {dump:.2f} s of criu dump"
        whole = f"from a running job to a durable image: {ours:.2f} s against {theirs}; {floor}"
        yield Figure("repo_ratio" + tail, (min(restic, borg) + dump) / ours, whole, raw)
        spared = "as above, theirs without the dump, which ours has in it"
        yield Figure("repo_ratio_dump_spared" + tail, min(restic, borg) / ours, spared, raw)


def _torn(order: Order) -> Iterable[Figure]:
    raw = scene(order, "torn", order.dumps, "yes")
    compared = f"of {raw['dumps']} live dumps of a small job with a slow, a paused and a starved receiver"
    yield Figure("torn", raw["torn"], compared, raw)
    raw = scene(order, "torn", max(6, order.dumps // 10), "no")
    yield Figure("torn_without_wait", raw["torn"], f"of {raw['dumps']}, the wait for the receiver taken out", raw)


def _moved(name: str) -> Part:
    """A part with a controller, which is loaded when it is asked for: a lent machine lacks what a controller needs."""
    return lambda order: getattr(importlib.import_module("bench.moves"), name)(order)


PARTS: dict[str, Part] = {
    "freeze": _freeze,
    "unwatched": _unwatched,
    "durable": _durable,
    "second": _second,
    "final": _final,
    "share": _share,
    "restore": _restore,
    "lazy": _lazy,
    "stamps": _stamps,
    "repos": _repos,
    "link": _link,
    "lazy1gbit": _lazy_link,
    "torn": _torn,
    "dirty": _dirty,
    "warm": _moved("warm"),
    "idle": _moved("idle"),
}
