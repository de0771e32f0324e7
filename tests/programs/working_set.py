"""Has SIZE MiB and uses the first PART MiB of them again and again, checking every page. After
SIGUSR1 it uses all of them; after SIGTERM it checks all once more and ends."""

import mmap
import signal
import struct
import sys
import time

PAGE = 4096
size, part = (int(argument) * 1024 * 1024 // PAGE for argument in sys.argv[1:])
memory = mmap.mmap(-1, size * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
rounds = [0] * size
used, ends = part, False


def use_all(*_):
    global used
    used = size


def end(*_):
    global ends
    ends = True


def check(page):
    found = struct.unpack_from("<QQ", memory, page * PAGE)
    if found != (page, rounds[page]):
        sys.exit(f"page {page} has {found}, not round {rounds[page]}")


def write(page):
    struct.pack_into("<QQ", memory, page * PAGE, page, rounds[page])


signal.signal(signal.SIGUSR1, use_all)
signal.signal(signal.SIGTERM, end)
for page in range(size):
    write(page)
print("ready", flush=True)
while not ends:
    for page in range(used):
        check(page)
        rounds[page] += 1
        write(page)
    if used == size:
        print("went over all", flush=True)
    time.sleep(0.02)
for page in range(size):
    check(page)
print("all right", flush=True)
