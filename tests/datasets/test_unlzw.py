"""Decompression of Unix `compress` data, which a small encoder writes."""

import random
import shutil
import subprocess

import pytest

from datasets._unlzw import unlzw


def compress(content: bytes, max_bits: int = 16, clear_when_full: bool = False) -> bytes:
    """Writes the .Z format as `compress` does."""
    output = bytearray([0x1F, 0x9D, 0x80 | max_bits])
    group, width = [], 9

    def flush(whole: bool) -> None:
        number = sum(code << (i * width) for i, code in enumerate(group))
        size = width if whole else -(-len(group) * width // 8)
        output.extend(number.to_bytes(size, "little"))
        group.clear()

    def emit(code: int) -> None:
        group.append(code)
        if len(group) == 8:
            flush(True)

    table = {bytes([i]): i for i in range(256)}
    free, word = 257, b""
    for value in content:
        longer = word + bytes([value])
        if longer in table:
            word = longer
            continue
        emit(table[word])
        if free >= 1 << width and width < max_bits:
            if group:
                flush(True)
            width += 1
        if free < 1 << max_bits:
            table[longer] = free
            free += 1
        elif clear_when_full:
            emit(256)
            if group:
                flush(True)
            table = {bytes([i]): i for i in range(256)}
            free, width = 257, 9
        word = bytes([value])
    if word:
        emit(table[word])
    if group:
        flush(False)
    return bytes(output)


def text(length: int, symbols: int) -> bytes:
    draw = random.Random(length)
    return bytes(draw.choices(range(97, 97 + symbols), k=length))


CASES = [
    (b"", {}),
    (b"a", {}),
    (b"a" * 5000, {}),
    (text(3000, 3), {}),
    (bytes(range(256)) * 3, {}),
    (text(400_000, 20), {}),
    (text(40_000, 20), {"max_bits": 10}),
    (text(40_000, 20), {"max_bits": 12, "clear_when_full": True}),
    (text(600_000, 25), {"clear_when_full": True}),
]


# The 16 bits of the default take long texts; `CASES[7]` clears a table of 12.
FURTHER = {8: [pytest.mark.thorough]}
MARKED = [pytest.param(*case, marks=FURTHER.get(i, []), id=str(i)) for i, case in enumerate(CASES)]


@pytest.mark.parametrize(("content", "options"), MARKED)
def test_content_comes_back(content, options):
    assert unlzw(compress(content, **options)) == content


@pytest.mark.skipif(shutil.which("gzip") is None, reason="checking the encoder needs gzip")
@pytest.mark.parametrize(("content", "options"), MARKED[2:])
def test_the_encoder_of_the_tests_writes_what_gzip_reads(content, options):
    packed = compress(content, **options)
    unpacked = subprocess.run(["gzip", "-dc"], input=packed, capture_output=True, check=True)
    assert unpacked.stdout == content


@pytest.mark.parametrize("data", [b"", b"\x1f\x9d", b"\x1f\x8b\x08\x00", b"\x1f\x9d\x10ab"])
def test_other_formats_are_refused(data):
    with pytest.raises(ValueError, match="must be a .Z file"):
        unlzw(data)


def test_impossible_code_is_refused():
    codes = (97) | (400 << 9)
    with pytest.raises(ValueError, match="code 400 is not in the table"):
        unlzw(b"\x1f\x9d\x90" + codes.to_bytes(3, "little"))
