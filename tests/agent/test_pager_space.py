"""What a pager knows of memory that arrives, against a model that keeps every page by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_agent.criu import images
from spotsurfer_agent.criu.images import Pagemap, PageRun
from spotsurfer_agent.restore.pager import __main__ as pager
from spotsurfer_agent.restore.pager import feeder
from spotsurfer_agent.restore.pager.process_memory import Run, Space, runs
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.manifest import Extents

WIDTH = 64  # pages of the model's address space
DEEDS = st.lists(
    st.tuples(st.sampled_from(["put", "drop", "move", "fork"]), *(st.integers(0, WIDTH - 1) for _ in range(3))), max_size=25
)


def begun() -> tuple[Space, dict[int, tuple[int, bool]]]:
    """Two runs with a gap, and the model: page of the address space -> page of the file, whether it is there."""
    space = Space([Run(20 * PAGE, 0, bytearray(12)), Run(40 * PAGE, 12, bytearray(8))])
    return space, {**{20 + i: (i, False) for i in range(12)}, **{40 + i: (12 + i, False) for i in range(8)}}


def same(space: Space, model: dict[int, tuple[int, bool]]) -> None:
    found = {}
    for page in range(2 * WIDTH):
        at = space.find(page * PAGE)
        if at is not None:
            run, i = at
            found[page] = (run.at + i, bool(run.done[i]))
    assert found == model
    assert space.missing == sum(not there for _, there in model.values())
    left = sorted(s.run.at + i for s in space.left() for i in range(s.first, s.last))
    assert left == sorted(at for at, there in model.values() if not there)


@given(DEEDS)
def test_moves_drops_and_children_leave_every_page_where_it_belongs(deeds):
    space, model = begun()
    for deed, a, b, c in deeds:
        first, last = min(a, b), max(a, b) + 1
        if deed == "put":
            for s in list(space.stretches(first, last)):
                lower, upper = s.run.at + s.first, s.run.at + s.last
                assert first <= lower < upper <= last
                space.mark(s.run, s.first, s.last)
            model = {page: (at, there or first <= at < last) for page, (at, there) in model.items()}
        elif deed == "drop":
            space.drop(first * PAGE, last * PAGE)
            model = {page: x for page, x in model.items() if not first <= page < last}
        elif deed == "move" and not first - (last - first) < c + WIDTH < last:
            to = WIDTH + c  # always elsewhere: the kernel refuses moves onto themselves
            if last > WIDTH or to + last - first > 2 * WIDTH:
                continue
            moved = {page + to - first: x for page, x in model.items() if first <= page < last}
            space.move(first * PAGE, to * PAGE, (last - first) * PAGE)
            kept = {p: x for p, x in model.items() if not first <= p < last and not to <= p < to + last - first}
            model = kept | moved
        elif deed == "fork":
            child = space.copy()
            space.drop(0, 2 * WIDTH * PAGE)
            space = child
        same(space, model)


def test_zeros_around_an_address_never_reach_into_a_run():
    space, _ = begun()
    assert space.gap(19 * PAGE, 16 * PAGE) == (16 * PAGE, 20 * PAGE)
    assert space.gap(33 * PAGE, 64 * PAGE) == (32 * PAGE, 40 * PAGE)
    assert space.gap(50 * PAGE, 64 * PAGE) == (48 * PAGE, 64 * PAGE)


FILE = Extents.of([(0, 4 * PAGE, 0, PAGE), (6 * PAGE, 2 * PAGE, 1, 0), (8 * PAGE, PAGE, 0, 0)])


def test_pages_that_are_zeros_are_not_waited_for():
    whole = feeder.Layout({"pages-1.img": FILE})
    file = whole.files["pages-1.img"]
    found = list(runs(Pagemap("pages-1.img", (PageRun(0x10000, 7, 1, True), PageRun(0x90000, 1, 8, False))), file))
    assert [(r.start, r.at, len(r.done)) for r in found] == [(0x10000, 1, 3), (0x10000 + 5 * PAGE, 6, 2)]
    assert [file.chunk_of(i) for i in range(10)] == [0, 0, 0, 0, None, None, 1, 1, 0, None]
    assert file.chunks(2, 9) == [0, 1, 0]
    assert [tuple(u) for u in whole.uses(0)] == [("pages-1.img", 0, 4, PAGE), ("pages-1.img", 8, 1, 0)]
    assert whole.uses(7) == []


def test_what_was_touched_first_comes_first_the_next_time():
    maps = {7: Pagemap("pages-1.img", (PageRun(0x10000, 4, 0, True), PageRun(0x20000, 2, 6, True)))}
    whole = feeder.Layout({"pages-1.img": FILE})
    first = feeder.Order(maps, whole, None)
    assert list(first.all_chunks()) == [0, 1]
    first.touched(7, 0x20000)
    again = feeder.Order(maps, whole, first.learned())
    assert again.first_chunks() == [1]
    assert list(again.all_chunks()) == [1, 0]
    for hint in (b"{", b"[]", b'{"windows": [[1]]}', b'{"windows": 3}', b"[" * 100_000, b'{"windows": [[1e999, 1]]}'):
        assert feeder.Order(maps, whole, hint).first_chunks() == []


def _message(*fields: tuple[int, int]) -> bytes:
    body = b""
    for number, value in fields:
        body += bytes([number << 3])
        while value > 127:
            body += bytes([value & 127 | 128])
            value >>= 7
        body += bytes([value])
    return len(body).to_bytes(4, "little") + body


def test_a_map_of_pages_is_read_and_a_torn_one_refused():
    head, lazy, eager, absent = (
        _message((1, 3)),
        _message((1, 0x5000), (2, 2), (4, 6)),
        _message((1, 0x9000), (5, 1), (4, 4)),
        _message((1, 0xA000), (2, 9), (4, 1)),
    )
    found = images.pagemap(bytes(8) + head + lazy + absent + eager)
    assert found == Pagemap("pages-3.img", (PageRun(0x5000, 2, 0, True), PageRun(0x9000, 1, 2, False)))
    for torn in (b"", bytes(8), (bytes(8) + head + lazy)[:-1]):
        try:
            images.pagemap(torn)
        except images.BadImage:
            continue
        raise AssertionError("a torn map was read")


def test_pages_may_come_later_by_what_their_area_is_though_the_map_denies_it():
    private, shared, locked, vdso = (6, 0x22), (6, 0x21), (6, 0x2022), (7, 1 << 3)
    listed = [(0x2000, 0x4000, private, (7, 1)), (0x4000, 0x5000, (6, 0x02), (7, 1)), (0x5000, 0x7000, shared, (7, 1))]
    listed += [(0x7000, 0x8000, locked, (7, 1)), (0x8000, 0x9000, private, vdso), (0x9000, 0xC000, private, (7, 1))]
    body = _message((1, 5))[4:]
    for start, end, mapped_as, kind in listed:
        area = _message((1, start), (2, end), mapped_as, kind)[4:]
        body += bytes([14 << 3 | 2, len(area)]) + area
    areas = images.areas(bytes(8) + len(body).to_bytes(4, "little") + body)
    assert areas == [(0x2000, 0x4000), (0x9000, 0xC000)]
    data = bytes(8) + _message((1, 3)) + _message((1, 0x3000), (2, 8), (4, 4)) + _message((1, 0x200000000), (2, 1), (4, 4))
    found = images.pagemap(data)
    better = images.later(found, areas)
    expected = [(0x3000, 1, 0, True), (0x4000, 5, 1, False), (0x9000, 2, 6, True), (0x200000000, 1, 8, False)]
    assert better == Pagemap("pages-3.img", tuple(PageRun(*x) for x in expected))
    assert images.pagemap(images.encoded(data, better)) == better
    assert images.later(better, areas) == better
    for torn in (b"", bytes(8), bytes(8) + b"\x02\0\0\0\x72\x05"):
        with pytest.raises(images.BadImage):
            images.areas(torn)


def test_pages_with_what_a_program_was_called_with_come_first():
    body = _message((1, 5), (8, 0x5010), (9, 0x5100), (10, 0x5100), (11, 0x7001))[4:]
    data = bytes(8) + len(body).to_bytes(4, "little") + body
    assert images.words(data) == (0x5010, 0x7001)
    runs = [(0x1000, 1, 0, True), (0x3000, 3, 1, True), (0x6000, 1, 4, False), (0x7000, 3, 5, True), (0xB000, 1, 8, True)]
    found = Pagemap("pages-3.img", tuple(PageRun(*x) for x in runs))
    better = images.first(found, images.words(data))
    expected = [(0x1000, 1, 0, True), (0x3000, 2, 1, True), (0x5000, 1, 3, False), (0x6000, 1, 4, False)]
    expected += [(0x7000, 1, 5, False), (0x8000, 2, 6, True), (0xB000, 1, 8, True)]
    assert better == Pagemap("pages-3.img", tuple(PageRun(*x) for x in expected))
    assert images.first(better, images.words(data)) == better
    for torn in (b"", bytes(8), data[:-1]):
        with pytest.raises(images.BadImage):
            images.words(torn)


GIB = 1 << 30


def _tree(count: int, lazy: bool, shared: bool) -> tuple[dict[int, Pagemap], dict[str, Extents]]:
    maps = {i: Pagemap(f"pages-{i}.img", (PageRun(0x1000, GIB // PAGE, 0, lazy),)) for i in range(1, count + 1)}
    return maps, {m.file: Extents.of([(0, GIB, 0 if shared else i, 0)]) for i, m in maps.items()}


def test_memory_comes_later_only_where_that_helps():
    free = 2 * GIB
    assert pager.plain_because(*_tree(1, True, False), free) == ""
    assert "kernel" in pager.plain_because(*_tree(1, True, False), 2 * GIB, faults=False)
    assert "shared" in pager.plain_because(*_tree(1, False, False), free) or "little" in pager.plain_because(
        *_tree(1, False, False), free
    )
    assert pager.plain_because(*_tree(3, True, False), free) == ""
    assert "copy each" in pager.plain_because(*_tree(3, True, True), free)
    assert pager.plain_because(*_tree(3, True, True), 9 * GIB) == ""
    assert "go on to do so" in pager.plain_because(*_tree(3, True, True), 9 * GIB, at_once=False)
    assert pager.plain_because(*_tree(3, True, False), free, at_once=False) == ""
    assert "little memory" in pager.plain_because({}, {}, free)


def test_a_few_equal_pages_do_not_leave_all_memory_to_one_processor():
    """A main process on a GPU and three workers that were started alike: equal pages of the libraries that they loaded."""
    library = GIB // 64
    rows = {f"pages-{i}.img": [(0, GIB, i, 0), (GIB, library, 9, PAGE * i)] for i in range(1, 5)}
    files = {name: Extents.of(extents) for name, extents in rows.items()}
    maps = {i: Pagemap(f"pages-{i}.img", (PageRun(0x1000, (GIB + library) // PAGE, 0, True),)) for i in range(1, 5)}
    roomy, tight = 9 * GIB, 4 * GIB
    assert pager.plain_because(maps, files, roomy, at_once=False) == ""
    assert "copy each" in pager.plain_because(maps, files, tight, at_once=False)
    twice = {name: Extents.of([*extents, (2 * GIB, GIB // 4, 10, 0)]) for name, extents in rows.items()}
    assert "go on to do so" in pager.plain_because(maps, twice, roomy, at_once=False)
    assert pager.plain_because(maps, twice, roomy) == ""


def test_pages_that_one_process_holds_twice_are_no_sharing():
    within = {"pages-1.img": Extents.of([(0, GIB, 1, 0), (GIB, GIB, 1, 0)]), "pages-2.img": Extents.of([(0, GIB, 2, 0)])}
    maps = {i: Pagemap(f"pages-{i}.img", (PageRun(0x1000, GIB // PAGE, 0, True),)) for i in (1, 2)}
    assert pager.plain_because(maps, within, 1 << 20, at_once=False) == ""
