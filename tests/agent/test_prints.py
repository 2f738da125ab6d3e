"""Nobody can choose what the agent takes for equal: pages are told apart under a secret key, and empty ones by their bytes."""

from __future__ import annotations

import random
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import xxhash
from spotsurfer_agent.chunks import print_workers
from spotsurfer_agent.chunks.chunker import Sender
from spotsurfer_agent.chunks.fingerprints import PRINT, Index, Printer, empty
from spotsurfer_agent.chunks.print_workers import Printing
from spotsurfer_agent.chunks.writer import Writer
from spotsurfer_wire.chunks.budget import Limits
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.manifest import Entry
from support.chunks import Store
from support.dict_store import DictStore
from support.page_saves import NAME, content, manifest, save
from support.twins import alike_under_many_seeds, twin

ZERO = bytes(PAGE)
PAYLOAD = random.Random(1).randbytes(PAGE * 3 // 4)
LIKE_ZERO = twin(ZERO, PAYLOAD)  # 3 of 4 bytes are anybody's, and xxh3 can't tell it from zeros
A_PAGE = random.Random(2).randbytes(PAGE)
LIKE_IT = twin(A_PAGE, PAYLOAD)
SECRET = Keys.derive(b"k" * 32, "job").prints


@pytest.mark.parametrize(("page", "like"), [(ZERO, LIKE_ZERO), (A_PAGE, LIKE_IT)])
def test_the_pages_of_these_tests_are_what_they_are_said_to_be(page, like):
    assert page != like
    assert like[:768] == PAYLOAD[:768]
    assert xxhash.xxh3_128_digest(page) == xxhash.xxh3_128_digest(like)


@pytest.mark.parametrize(("page", "like"), [(ZERO, LIKE_ZERO), (A_PAGE, LIKE_IT)])
def test_who_knows_no_key_can_make_no_page_with_the_fingerprint_of_another(page, like):
    printer = Printer(SECRET)
    assert printer.of_pages(memoryview(page)) != printer.of_pages(memoryview(like))


def test_a_secret_seed_of_xxh3_would_not_do():
    page, other = alike_under_many_seeds()
    seeds = [random.Random(n).getrandbits(64) for n in range(1000)]
    assert sum(xxhash.xxh3_128_digest(page, seed) == xxhash.xxh3_128_digest(other, seed) for seed in seeds) > 5
    printers = [Printer(Keys.derive(b"", f"job {n}").prints).of_pages for n in range(200)]
    assert not any(of_pages(memoryview(page)) == of_pages(memoryview(other)) for of_pages in printers)


def test_a_fingerprint_is_of_one_page_and_of_one_lineage():
    data = content(1, 2, 1, 0, *range(200)) + b"the end"
    mine, others = (Printer(Keys.derive(b"k" * 32, name).prints) for name in ("job", "other"))
    prints = mine.of_pages(memoryview(data))
    each = [prints[at : at + PRINT] for at in range(0, len(prints), PRINT)]
    assert each[0] == each[2] == mine.of_pages(memoryview(content(1)))
    assert each[-1] == mine.of_pages(memoryview(b"the end".ljust(PAGE, b"\0")))
    assert len({*each}) == len(each) - 4, "1, 1, 2 and 0 came before"
    assert not {*each} & {others.of_pages(memoryview(data))[at : at + PRINT] for at in range(0, len(prints), PRINT)}


@pytest.fixture
def printing():
    made = Printing(SECRET, 3)
    yield made
    made.end()


@pytest.mark.parametrize("size", [1, PAGE, 5 * PAGE + 7, 900 * PAGE, (5 << 20) + 9])
def test_workers_make_what_a_printer_makes(printing, size):
    data = memoryview(bytearray(random.Random(1).randbytes(size)))
    assert printing.of_pages(data) == Printer(SECRET).of_pages(data)


def test_many_threads_share_the_workers(printing):
    pieces = [memoryview(bytearray(random.Random(n).randbytes((n % 40 + 1) * PAGE))) for n in range(200)]
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(printing.of_pages, pieces))
    assert made == [Printer(SECRET).of_pages(piece) for piece in pieces]
    assert printing.workers == 3


def test_all_threads_go_on_without_workers_once_one_is_killed(printing):
    pieces = [memoryview(bytearray(random.Random(n).randbytes(300 * PAGE))) for n in range(40)]
    with ThreadPoolExecutor(8) as threads:
        made = [threads.submit(printing.of_pages, piece) for piece in pieces]
        printing._workers[1].kill()
        assert [m.result(30) for m in made] == [Printer(SECRET).of_pages(piece) for piece in pieces]
    printing.of_pages(pieces[0])
    assert printing.workers == 0


def test_a_worker_that_is_killed_costs_no_save(printing, caplog):
    data = memoryview(bytearray(content(*range(1, 100))))
    workers = list(printing._workers)
    workers[1].kill()
    for _ in range(2):
        assert printing.of_pages(data) == Printer(SECRET).of_pages(data)
    assert "goes on without helpers" in caplog.text
    assert all(w.poll() is not None for w in workers)


@pytest.mark.parametrize("fails", ["start", "secret"])
def test_a_worker_that_can_not_be_started_costs_no_save(monkeypatch, caplog, fails):
    def no_room(*_, **__):
        raise OSError(12, "no memory for one")

    monkeypatch.setattr(*{"start": ("subprocess.Popen", no_room), "secret": (print_workers, "_tell", no_room)}[fails])
    data = memoryview(bytearray(content(*range(1, 100))))
    printing = Printing(SECRET, 3)
    assert printing.workers == 0
    assert printing.of_pages(data) == Printer(SECRET).of_pages(data)
    assert "goes on without helpers" in caplog.text


def test_nobody_waits_for_a_worker_that_hangs_once_the_save_is_given_up(printing):
    data = memoryview(bytearray(content(*range(1, 100))))
    printing._workers[2].send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(printing.of_pages, data)
        with pytest.raises(TimeoutError):
            asked.result(0.5)
        printing.end()
        assert asked.result(10) == Printer(SECRET).of_pages(data)


@pytest.mark.parametrize(
    ("processors", "gib", "workers"), [(2, 9, 0), (4, 9, 2), (8, 9, 4), (16, 9, 6), (96, 9, 6), (96, 0.5, 0)]
)
def test_workers_start_where_they_help(monkeypatch, processors, gib, workers):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(processors)))
    assert print_workers.useful(int(gib * 2**30)) == workers


@pytest.mark.parametrize("at", [0, 7, 1024, 2000, 2728, PAGE - 1])
def test_a_page_is_empty_if_all_its_bytes_are_zeros(at):
    page = bytearray(PAGE)
    page[at] = 1
    data = ZERO + page + ZERO
    assert empty(memoryview(data)).tolist() == [True, False, True]
    assert empty(memoryview(data + bytes(9))).tolist() == [True, False, True, True]
    assert empty(memoryview(data + bytes(9) + b"x")).tolist() == [True, False, True, False]
    assert empty(memoryview(b"x")).tolist() == [False]


def sent(tmp_path, data):
    """What of a file's bytes is stored, as its extents say."""
    (tmp_path / "file").write_bytes(data)
    with Writer(DictStore(), "job", Store.keys, Limits(memory_bytes=64 << 20), {}) as writer:
        [entry] = Sender(writer).send([Entry("file", "file", size=len(data))], lambda e: tmp_path / e.path)
    return [(e.offset, e.length) for e in entry.extents]


def test_a_page_that_looks_like_zeros_to_xxh3_comes_back_as_it_was(tmp_path):
    store = Store()
    (entry,), index = save(store, {NAME: LIKE_ZERO + ZERO + A_PAGE})
    assert store.read(entry) == LIKE_ZERO + ZERO + A_PAGE
    (entry,), _ = save(store, {NAME: ZERO + LIKE_ZERO + A_PAGE + LIKE_ZERO}, index)
    assert store.read(entry) == ZERO + LIKE_ZERO + A_PAGE + LIKE_ZERO
    assert sent(tmp_path, ZERO + LIKE_ZERO + ZERO) == [(PAGE, PAGE)]


def test_a_page_that_looks_like_one_of_the_base_comes_back_as_it_was():
    store = Store()
    _, index = save(store, {NAME: A_PAGE + content(7)})
    store.sent = 0
    for data in (LIKE_IT + content(7), content(7) + LIKE_IT):
        (entry,), _ = save(store, {NAME: data}, index)
        assert store.read(entry) == data


def test_a_page_is_taken_for_empty_by_its_bytes_whatever_its_fingerprint(tmp_path, monkeypatch):
    """As if somebody had found the key: then still no page becomes zeros."""
    monkeypatch.setattr(Printer, "of_pages", lambda _, data: b"always the same " * -(-len(data) // PAGE))
    store, data = Store(), A_PAGE + ZERO
    (entry,), _ = save(store, {NAME: data})
    assert store.read(entry) == data
    assert sent(tmp_path, data) == [(0, PAGE)]
    _, index = save(store, {NAME: ZERO + ZERO})
    (entry,), _ = save(store, {NAME: data}, index)
    assert store.read(entry) == data


def test_nothing_is_built_on_fingerprints_without_a_key(tmp_path):
    """Those of an older agent: what they say is not believed, and a base that one left on the machine's disk is none."""
    store = Store()
    entries, index = save(store, {NAME: A_PAGE + content(*range(1, 30))})
    image = manifest(entries, store.table.rows)
    old = Index(image)
    old.fill(NAME, b"".join(xxhash.xxh3_128_digest(store.read(entries[0])[at : at + PAGE]) for at in range(0, 30 * PAGE, PAGE)))
    store.sent, store.plain = 0, {}
    (entry,), _ = save(store, {NAME: LIKE_IT + content(*range(1, 30))}, old)
    assert store.read(entry) == LIKE_IT + content(*range(1, 30))
    assert store.sent == 30 * PAGE
    index.save(tmp_path / "kept")
    assert Index.load(tmp_path / "kept", image) is not None
    (tmp_path / "kept").write_bytes((tmp_path / "kept").read_bytes().replace(b"SSFP3\n", b"SSFP2\n", 1))
    assert Index.load(tmp_path / "kept", image) is None
