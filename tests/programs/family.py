"""Programs that start each other, by exec, vfork and fork, with memory that is evicted. Each
checks what it has before it goes. Arguments: MiB, then what to do:

chain N     fill, wait until a third of it is evicted, check, exec itself with `chain N-1`; the
            last one forks, and parent and child check.
threads     the same, with the exec in a thread that is not the first, while others use the memory.
spawn N     posix_spawn (a vfork) of N programs in turn, and a check after each.
serve N     fork N children that keep what they inherited and write some of it; says "serving", and
            at SIGUSR1 all check and end."""
import ctypes
import os
import random
import signal
import struct
import sys
import threading
import time

PAGE = 4096
SIZE, WHAT = int(sys.argv[1]) << 20, sys.argv[2]


class Memory:
    def __init__(self, seed):
        self.data = bytearray(SIZE)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.data))
        self.seed, self.own = seed, {}
        content = random.Random(seed)
        for at in range(0, SIZE, PAGE):
            self.data[at:at + 16] = content.randbytes(16)

    def write(self, dice):
        page = dice.randrange(SIZE // PAGE)
        self.own[page] = dice.randbytes(16)
        self.data[page * PAGE:page * PAGE + 16] = self.own[page]

    def check(self, who):
        content = random.Random(self.seed)
        for page in range(SIZE // PAGE):
            expected = content.randbytes(16)
            if self.data[page * PAGE:page * PAGE + 16] != self.own.get(page, expected):
                raise SystemExit(f"{who}: page {page} is wrong")

    def wait_evicted(self):
        deadline = time.monotonic() + 60
        while True:
            with open("/proc/self/pagemap", "rb") as pagemap:
                pagemap.seek((self.at // PAGE + 1) * 8)
                pages = SIZE // PAGE - 1
                resident = sum(entry >> 63 for entry in struct.unpack(f"<{pages}Q", pagemap.read(pages * 8)))
            if resident < pages * 2 // 3:
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"{resident} of {pages} pages stay resident")
            time.sleep(0.02)


def itself(*what):
    return [sys.executable, sys.argv[0], sys.argv[1], *what]


def forked(does):
    pid = os.fork()
    if pid == 0:
        try:
            does()
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
    return pid


def must_end_well(pid):
    status = os.waitpid(pid, 0)[1]
    if status != 0:
        raise SystemExit(f"process {pid} ended with {status:#x}")


def chain(left):
    memory = Memory(left)
    memory.wait_evicted()
    memory.check(f"{left} to go")
    memory.wait_evicted()
    if left > 0:
        os.execv(sys.executable, itself("chain", str(left - 1)))
    pid = forked(lambda: memory.check("child of the last"))
    memory.check("last")
    must_end_well(pid)


def threads():
    memory = Memory(1)
    memory.wait_evicted()

    def uses():
        while True:
            memory.check("thread")

    for _ in range(2):
        threading.Thread(target=uses, daemon=True).start()
    time.sleep(0.3)
    threading.Thread(target=lambda: os.execv(sys.executable, itself("chain", "1"))).start()
    time.sleep(60)
    raise SystemExit("it was not replaced")


def spawn(programs):
    memory = Memory(2)
    for nth in range(programs):
        memory.wait_evicted()
        must_end_well(os.posix_spawn(sys.executable, itself("chain", "0"), os.environ))
        memory.check(f"after program {nth}")


def serve(children):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    memory = Memory(3)
    memory.wait_evicted()

    def works(nth):
        dice = random.Random(nth)
        for _ in range(SIZE // PAGE // 20):
            memory.write(dice)
        while not signal.sigtimedwait([signal.SIGUSR1], 0.05):
            memory.write(dice)
        memory.check(f"child {nth}")

    pids = [forked(lambda nth=nth: works(nth)) for nth in range(children)]
    print("serving", flush=True)
    signal.sigwait([signal.SIGUSR1])
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    memory.check("parent")
    for pid in pids:
        must_end_well(pid)


def main():
    does = {"chain": chain, "threads": threads, "spawn": spawn, "serve": serve}[WHAT]
    does(*(int(number) for number in sys.argv[3:]))
    print("all right", flush=True)


main()
