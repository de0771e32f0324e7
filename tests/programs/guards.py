"""Puts guards (MADV_GUARD_INSTALL) over pages that are evicted, and takes some away again. Says
"guarded", and at SIGUSR1 checks that each page has its value, is a guard, or is zeros as it
should be. Argument: MiB."""
import ctypes
import mmap
import os
import signal
import struct
import sys
import time

PAGE, INSTALL, REMOVE = 4096, 102, 103
PAGES = (int(sys.argv[1]) << 20) // PAGE
GUARDED, BARE = range(1000, 1400), range(2000, 2300)

libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def advise(at, pages, advice):
    if libc.madvise(at + pages.start * PAGE, len(pages) * PAGE, advice) != 0:
        sys.exit(f"madvise {advice}: {os.strerror(ctypes.get_errno())}")


def resident(at):
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(at // PAGE * 8)
        entries = struct.unpack(f"<{PAGES}Q", pagemap.read(PAGES * 8))
    return [page for page in range(PAGES) if entries[page] >> 63]


def how_it_ends(data, page):
    """The signal that ends a child which touches the page."""
    pid = os.fork()
    if pid == 0:
        data[page * PAGE]
        os._exit(0)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def main():
    data = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    at = ctypes.addressof(ctypes.c_char.from_buffer(data))
    for page in range(PAGES):
        struct.pack_into("<Q", data, page * PAGE, page + 1)
    deadline = time.monotonic() + 60
    while set(GUARDED) & set(resident(at)) or set(BARE) & set(resident(at)):
        if time.monotonic() > deadline:
            sys.exit("the pages stay resident")
        time.sleep(0.05)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
    advise(at, GUARDED, INSTALL)
    advise(at, BARE, INSTALL)
    print("guarded", flush=True)
    # Something else comes and goes: pages are evicted, and mappings looked at.
    other = bytearray(PAGES * PAGE // 2)
    while not signal.sigtimedwait([signal.SIGUSR2], 0):
        for i in range(0, len(other), PAGE):
            other[i] = i & 0x7f
    advise(at, BARE, REMOVE)
    print("bare", flush=True)
    signal.sigwait([signal.SIGUSR1])
    for page in range(PAGES):
        if page in GUARDED:
            continue
        found, wanted = struct.unpack_from("<Q", data, page * PAGE)[0], 0 if page in BARE else page + 1
        if found != wanted:
            sys.exit(f"page {page} has {found:#x} instead of {wanted:#x}")
    for page in (GUARDED[0], GUARDED[7], GUARDED[200], GUARDED[-1]):
        if how_it_ends(data, page) != signal.SIGSEGV:
            sys.exit(f"page {page} is no guard any more")
    print("verified")


main()
