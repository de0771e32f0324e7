"""Builds large dicts, lists and arrays, changes them, and checks every element. Argument: about
how many MiB to use."""
import array
import gc
import hashlib
import sys

MIB = int(sys.argv[1]) if len(sys.argv) > 1 else 128


def text(i, generation):
    return f"{i}:{generation}:" + hashlib.md5(f"{i}/{generation}".encode()).hexdigest() * 4


def main():
    count = MIB * 2300  # an entry takes about 350 bytes, arrays take the rest
    table = {i: text(i, 0) for i in range(count)}
    numbers = array.array("Q", (i * 0x9E3779B97F4A7C15 & (1 << 64) - 1 for i in range(MIB * 8192)))
    backwards = {table[i]: i for i in range(0, count, 16)}
    for i in range(0, count, 3):
        table[i] = text(i, 1)
    for i in range(0, count, 7):
        del table[i]
    gc.collect()
    for i in range(0, len(numbers), 5):
        numbers[i] ^= 0xFFFF
    checked = 0
    for i in range(count):
        if i % 7 == 0:
            assert i not in table, f"{i} came back"
        else:
            expected = text(i, 1 if i % 3 == 0 else 0)
            assert table[i] == expected, f"entry {i}: expected {expected!r}, got {table[i]!r}"
            checked += 1
    for value, i in backwards.items():
        assert value == text(i, 0), f"key {i}: got {value!r}"
        checked += 1
    for i, number in enumerate(numbers):
        expected = i * 0x9E3779B97F4A7C15 & (1 << 64) - 1
        if i % 5 == 0:
            expected ^= 0xFFFF
        assert number == expected, f"number {i}: expected {expected}, got {number}"
        checked += 1
    print(f"checked {checked}")


main()
