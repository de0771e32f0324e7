"""Moves mappings over others that a fork has left shared, and checks that each has the right
bytes afterwards. Pairs of mappings lie side by side: a child keeps both, the second ones are
written anew, which makes them this process's own, and then come to lie where the first ones were,
without being touched. Arguments: seconds to go on."""
import ctypes
import os
import signal
import struct
import sys
import time

PAGE, PAIRS, PAGES = 4096, 96, 16
LEN = PAGES * PAGE
NONE, READ_WRITE, PRIVATE, FIXED_NOREPLACE = 0, 3, 0x22, 0x100000
MAYMOVE_FIXED = 3

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def mapped(result):
    if result in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "no mapping to be had")
    return result


def fill(at, generation):
    for page in range(PAGES):
        struct.pack_into("<QQ", (ctypes.c_char * PAGE).from_address(at + page * PAGE), 0, generation, page + 1)


def is_right(at, generation):
    found = (struct.unpack_from("<QQ", (ctypes.c_char * PAGE).from_address(at + page * PAGE)) for page in range(PAGES))
    return all(words == (generation, page + 1) for page, words in enumerate(found))


def main():
    # A page without access beside each keeps them from growing together.
    step = LEN + PAGE
    base = mapped(libc.mmap(None, 2 * PAIRS * step, NONE, PRIVATE, -1, 0))
    places = [base + nth * step for nth in range(2 * PAIRS)]
    for nth, at in enumerate(places):
        libc.munmap(at, LEN)
        mapped(libc.mmap(at, LEN, READ_WRITE, PRIVATE | FIXED_NOREPLACE, -1, 0))
        fill(at, nth)
    generation, moved = len(places), 0
    print("ready", flush=True)
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        for at in places[::2]:
            for page in range(PAGES):
                ctypes.c_char.from_address(at + page * PAGE).value
        child = os.fork()
        if child == 0:
            signal.pause()
        for at in places[1::2]:
            fill(at, generation)
        for first, second in zip(places[::2], places[1::2]):
            mapped(libc.mremap(second, LEN, LEN, MAYMOVE_FIXED, first))
            mapped(libc.mmap(second, LEN, READ_WRITE, PRIVATE | FIXED_NOREPLACE, -1, 0))
        wrong = [first for first in places[::2] if not is_right(first, generation)]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if wrong:
            sys.exit(f"wrong bytes after {moved} moves at {wrong}")
        generation, moved = generation + 1, moved + PAIRS
    print(moved)


main()
