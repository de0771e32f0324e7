"""Gives the kernel advice about memory whose pages are evicted, and checks what is there
afterwards: in this process and in the children that it forks. Arguments: MiB of each mapping,
then the names of the trials (the functions below)."""
import ctypes
import mmap
import os
import struct
import sys
import time

PAGE = 4096
SIZE = int(sys.argv[1]) << 20
DONTNEED, FREE, DONTFORK, DOFORK, COLLAPSE = 4, 8, 10, 11, 25
WIPEONFORK, KEEPONFORK, COLD, PAGEOUT, POPULATE_READ, POPULATE_WRITE = 18, 19, 20, 21, 22, 23
NONE, READ_WRITE, PRIVATE, FIXED_NOREPLACE = 0, 3, 0x22, 0x100000
EINVAL = 22

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for call in (libc.madvise, libc.mprotect):
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
for call in (libc.mlock, libc.munlock, libc.munmap):
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def must(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


class Area:
    """A mapping of its own, and the value that each of its pages is to begin with."""

    def __init__(self, at=None):
        # A page without access before and after it keeps it from growing together with others. In a
        # child those are there already.
        skip = 0 if at else PAGE
        found = libc.mmap(at, SIZE + 2 * skip, NONE, PRIVATE | (FIXED_NOREPLACE if at else 0), -1, 0)
        assert found not in (None, ctypes.c_void_p(-1).value), "no mapping to be had"
        self.at, self.pages = found + skip, SIZE // PAGE
        must(libc.mprotect(self.at, SIZE, READ_WRITE), "mprotect")
        self.bytes = memoryview((ctypes.c_char * SIZE).from_address(self.at)).cast("B")
        self.values = [0] * self.pages

    def fill(self, generation, pages=None):
        for page in range(self.pages) if pages is None else pages:
            self.values[page] = generation << 32 | page + 1
            struct.pack_into("<Q", self.bytes, page * PAGE, self.values[page])

    def resident(self):
        with open("/proc/self/pagemap", "rb") as pagemap:
            pagemap.seek(self.at // PAGE * 8)
            entries = struct.unpack(f"<{self.pages}Q", pagemap.read(self.pages * 8))
        return sum(entry >> 63 for entry in entries)

    def wait_evicted(self, most=None):
        """Until no more than `most` pages, or a half, are resident. All of them together may be less than that."""
        deadline = time.monotonic() + 60
        while self.resident() > (most or self.pages // 2):
            assert time.monotonic() < deadline, f"{self.resident()} of {self.pages} pages stay resident"
            time.sleep(0.02)

    def filled_and_evicted(self, generation=1):
        self.fill(generation)
        self.wait_evicted()
        return self

    def advise(self, advice, first=0, pages=None):
        must(libc.madvise(self.at + first * PAGE, (pages or self.pages - first) * PAGE, advice), f"madvise {advice}")

    def check(self, who, values=None, first=0):
        for page, value in list(enumerate(values or self.values))[first:]:
            found = struct.unpack_from("<Q", self.bytes, page * PAGE)[0]
            assert found == value, f"{who}: page {page} of {self.pages} has {found:#x} instead of {value:#x}"

    def unmap(self):
        self.bytes.release()
        must(libc.munmap(self.at - PAGE, SIZE + 2 * PAGE), "munmap")


def child(does):
    """Forks a child that does it; it must end well."""
    pid = os.fork()
    if pid == 0:
        try:
            does()
            os._exit(0)
        except BaseException as error:
            print(f"child: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"the child ended with {status:#x}"


def wiped_on_fork():
    area = Area().filled_and_evicted()
    area.advise(WIPEONFORK)

    def finds_zeros_and_hands_down_none_of_its_own():
        area.check("child", [0] * area.pages)
        area.fill(7)
        child(lambda: area.check("grandchild", [0] * area.pages))
        area.check("child, after its own fork")

    child(finds_zeros_and_hands_down_none_of_its_own)
    area.check("parent")
    area.unmap()


def half_is_wiped_on_fork():
    area = Area().filled_and_evicted()
    half = area.pages // 2
    area.advise(WIPEONFORK, half)
    child(lambda: area.check("child", area.values[:half] + [0] * (area.pages - half)))
    area.check("parent")
    area.unmap()


def kept_on_fork_after_all():
    area = Area().filled_and_evicted()
    area.advise(WIPEONFORK)
    area.advise(KEEPONFORK)
    child(lambda: area.check("child"))
    area.check("parent")
    area.unmap()


def not_there_after_a_fork():
    area = Area().filled_and_evicted()
    area.advise(DONTFORK)

    def maps_something_else_there():
        anew = Area(area.at)
        # Its other pages are never touched before they are checked.
        anew.fill(3, range(0, anew.pages, 2))
        anew.wait_evicted(anew.pages // 4)
        anew.check("child")

    child(maps_something_else_there)
    area.advise(DOFORK)
    area.wait_evicted()
    child(lambda: area.check("child after DOFORK"))
    area.check("parent")
    area.unmap()


def dropped():
    area = Area().filled_and_evicted()
    quarter = area.pages // 4
    area.advise(DONTNEED, 0, quarter)
    area.values[:quarter] = [0] * quarter
    area.check("after DONTNEED")
    area.fill(2)
    area.wait_evicted()
    area.advise(DONTNEED)
    area.fill(3, range(0, area.pages, 3))
    area.values = [value if page % 3 == 0 else 0 for page, value in enumerate(area.values)]
    area.wait_evicted()
    area.check("after DONTNEED and new values")
    area.unmap()


def freed():
    area = Area().filled_and_evicted()
    area.advise(FREE)
    area.fill(4, range(0, area.pages, 5))
    for page, value in enumerate(area.values):
        found = struct.unpack_from("<Q", area.bytes, page * PAGE)[0]
        # What was written since holds; of the rest the kernel may keep any page or none.
        allowed = (value,) if page % 5 == 0 else (value, 0)
        assert found in allowed, f"after FREE page {page} has {found:#x} instead of one of {allowed}"
    area.unmap()


def removed():
    area = Area().filled_and_evicted()
    # MADV_REMOVE punches holes in files, which this is none.
    refused = libc.madvise(area.at, SIZE, 9) == -1 and ctypes.get_errno() == EINVAL
    assert refused, "MADV_REMOVE did something to private memory"
    area.check("after a refused REMOVE")
    area.unmap()


def cold():
    area = Area().filled_and_evicted()
    for advice in (COLD, PAGEOUT):
        area.advise(advice)
        area.check(f"after advice {advice}")
        area.fill(advice)
        area.wait_evicted()
    area.check("in the end")
    area.unmap()


def populated():
    area = Area().filled_and_evicted()
    for advice in (POPULATE_READ, POPULATE_WRITE):
        # Piece by piece: the whole is more than may be resident at once.
        for first in range(0, area.pages, 256):
            area.advise(advice, first, min(256, area.pages - first))
        area.check(f"after advice {advice}")
        area.wait_evicted()
    area.unmap()


def collapsed():
    area = Area().filled_and_evicted()
    # Not every kernel has huge pages, nor has it one to give at any time.
    libc.madvise(area.at, SIZE, 14)
    libc.madvise(area.at, SIZE, COLLAPSE)
    area.check("after COLLAPSE")
    area.fill(5)
    area.wait_evicted()
    area.check("evicted again")
    area.unmap()


def locked():
    area = Area().filled_and_evicted()
    quarter = area.pages // 4
    must(libc.mlock(area.at, quarter * PAGE), "mlock")
    area.check("locked")
    must(libc.munlock(area.at, quarter * PAGE), "munlock")
    area.fill(6)
    area.wait_evicted()
    area.check("unlocked and evicted again")
    area.unmap()


def made_inaccessible():
    area = Area().filled_and_evicted()
    half = area.pages // 2
    for _ in range(3):
        must(libc.mprotect(area.at, half * PAGE, NONE), "mprotect")
        time.sleep(0.1)
        child(lambda: area.check("child", first=half))
        must(libc.mprotect(area.at, half * PAGE, READ_WRITE), "mprotect")
        area.check("accessible again")
        area.wait_evicted()
    area.unmap()


def main():
    for trial in sys.argv[2:]:
        globals()[trial]()
        print(trial, flush=True)
    # Whoever looks at what annexd counts for this program does so every 100 ms, and not after its
    # end.
    time.sleep(0.3)


main()
