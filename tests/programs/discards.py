"""Fills MiB of memory. At SIGUSR1 it throws them away in small parts, one after the other, and
then finds zeros everywhere. Nothing is touched in between. Argument: MiB."""
import mmap
import signal
import sys
import time

PART = 64 << 10


def main():
    size = int(sys.argv[1]) << 20
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    data = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, size, mmap.PAGESIZE):
        data[at:at + 8] = at.to_bytes(7, "little") + b"\x01"
    print("filled", flush=True)
    signal.sigwait([signal.SIGUSR1])
    for at in range(0, size, PART):
        data.madvise(mmap.MADV_DONTNEED, at, PART)
        time.sleep(0.003)
    kept = [at for at in range(0, size, mmap.PAGESIZE) if any(data[at:at + 8])]
    if kept:
        sys.exit(f"{len(kept)} pages still have what was thrown away, the first at {kept[0]:#x}")
    print("verified")


main()
