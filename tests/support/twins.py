"""Pages with the fingerprint that another page has under plain xxh3 (128 bits), three quarters of them of one's choice.

By the specification of XXH3 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md) an input of 4096 bytes is 64 stripes of eight
words of 64 bits. Each word w of lane i adds itself to accumulator i^1, and the product of both halves of w ^ secret to
accumulator i; after 16 stripes the accumulators are mixed. So two pages have one fingerprint if in each lane both sums over 16
stripes are alike. Four words see to that, and the other twelve are free. A seed is added to half of the secret's words and
taken from the others.
"""

from __future__ import annotations

import numpy as np
from spotsurfer_wire.linux.buffers import PAGE

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364ea"
    "c5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
LANES, STRIPES = 8, 16  # of 64 bits; between two mixings
FREE = 12 * LANES  # words of each kilobyte that may hold anything; the next 32 follow from them
HALF, ALL = (1 << 32) - 1, (1 << 64) - 1


def twin(page: bytes, payload: bytes) -> bytes:
    """A page with the unkeyed fingerprint of `page`; its 3072 bytes of payload are the first 768 of each kilobyte."""
    like = np.frombuffer(page, np.uint64).reshape(-1, STRIPES, LANES).tolist()
    made = np.zeros((PAGE // 1024, STRIPES * LANES), np.uint64)
    made[:, :FREE] = np.frombuffer(payload, np.uint64).reshape(-1, FREE)
    blocks = made.reshape(-1, STRIPES, LANES).tolist()
    for number, (block, wanted) in enumerate(zip(blocks, like, strict=True)):
        for lane in range(LANES):
            secrets = [_secret(number, stripe, lane) for stripe in range(STRIPES)]
            words = [stripe[lane] for stripe in block]
            _close(words, [stripe[lane] for stripe in wanted], secrets)
            for stripe, word in zip(block, words, strict=True):
                stripe[lane] = word
    return np.array(blocks, np.uint64).tobytes()


def alike_under_many_seeds() -> tuple[bytes, bytes]:
    """Two pages with one fingerprint under one seed in sixty.

    They differ in the top bits of two words of a lane. If the lower halves of both words, each with its secret, are alike, and
    the top bits are not, both changes add up to nothing. What the secrets of stripes 0 and 12 differ in is often the same.
    """
    lower, page = 101319696, np.frombuffer(np.random.default_rng(1).bytes(PAGE), np.uint64).copy()
    first, second = 0, 12 * LANES
    page[second] = (int(page[first]) & HALF) ^ lower | int(page[first]) & 1 << 63
    other = page.copy()
    other[[first, second]] ^= np.uint64(1 << 63)
    return page.tobytes(), other.tobytes()


def _secret(block: int, stripe: int, lane: int) -> int:
    last = (block, stripe) == (PAGE // 1024 - 1, STRIPES - 1)
    at = (len(SECRET) - 64 - 7 if last else 8 * stripe) + 8 * lane
    return int.from_bytes(SECRET[at : at + 8], "little")


def _close(words: list[int], like: list[int], secrets: list[int]) -> None:
    """Choose the last four words so that both sums are those of the other page."""
    product = sum(_product(w ^ s) for w, s in zip(like, secrets, strict=True))
    product = (product - sum(_product(w ^ s) for w, s in zip(words[:-4], secrets, strict=False))) & ALL
    high = min(product // HALF, HALF)
    rest = product - high * HALF  # two words make any product: (2^32 - 1) * high + 1 * rest
    assert rest <= HALF
    words[-4] = (HALF << 32 | high) ^ secrets[-4]
    words[-3] = (1 << 32 | rest) ^ secrets[-3]
    total = sum(like) - sum(words[:-2])
    low, up = secrets[-2] & ~HALF, secrets[-1] & HALF  # a half of zeros makes a product of zero, whatever the other half is
    total = (total - low - up) & ALL
    words[-2] = low | total & HALF
    words[-1] = up | total & ~HALF


def _product(word: int) -> int:
    return (word & HALF) * (word >> 32)
