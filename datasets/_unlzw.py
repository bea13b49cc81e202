"""Decompression of the format of Unix `compress` (.Z), for which Python has no module."""

_HEADER = b"\x1f\x9d"


def unlzw(data: bytes, most: int = 2**28) -> bytes:
    """Returns the content of a `.Z` file.

    The format has neither a length nor a checksum, so data that end early give a shorter content.

    Args:
      data: the whole file, in block mode (which every `compress` since 1985 writes).
      most: number of bytes that the content may have.

    Raises:
      ValueError: the data do not have this format, or the content is larger.
    """
    if data[:2] != _HEADER or len(data) < 3 or not data[2] & 0x80 or not 9 <= data[2] & 0x1F <= 16:
        raise ValueError("the data must be a .Z file in block mode")
    max_bits = data[2] & 0x1F
    clear, first_free = 256, 257
    table = [bytes([i]) for i in range(256)] + [b""]
    output: list[bytes] = []
    previous = b""
    width = 9
    # Codes come in groups of eight, which fill `width` bytes. Where the code width changes, a group
    # may have fewer codes and is padded.
    position, used, left = 3, 0, most
    while (bit := position * 8 + used * width) + width <= len(data) * 8:
        start = bit // 8
        code = int.from_bytes(data[start : start + 4], "little") >> bit % 8 & ((1 << width) - 1)
        used += 1
        new_width = width
        if code == clear:
            del table[first_free:]
            previous, new_width = b"", 9
        else:
            if code < len(table):
                entry = table[code]
            elif code == len(table) and previous:
                entry = previous + previous[:1]
            else:
                raise ValueError(f"code {code} is not in the table of {len(table)} entries")
            output.append(entry)
            if (left := left - len(entry)) < 0:
                raise ValueError(f"it unpacks to more than {most} bytes")
            if previous and len(table) < 1 << max_bits:
                table.append(previous + entry[:1])
            previous = entry
            if len(table) >= 1 << width and width < max_bits:
                new_width = width + 1
        if new_width != width or code == clear:
            position += -(-used // 8) * width
            used, width = 0, new_width
    return b"".join(output)
