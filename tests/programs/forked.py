"""Forks children that keep what they inherited, and checks that each process has the right bytes
in the end. Nothing is written in between, so all of it is shared. Arguments: MiB of data, number
of children. SIGUSR1 ends it."""
import os
import random
import signal
import sys

PAGE = 4096


def right(data, seed):
    expected = random.Random(seed)
    return all(data[at:at + 16] == expected.randbytes(16) for at in range(0, len(data), PAGE))


def main():
    size, children = int(sys.argv[1]) << 20, int(sys.argv[2])
    data = bytearray(size)
    content = random.Random(1)
    for at in range(0, size, PAGE):
        data[at:at + 16] = content.randbytes(16)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    pids = []
    for _ in range(children):
        pid = os.fork()
        if pid == 0:
            signal.sigwait([signal.SIGUSR1])
            os._exit(0 if right(data, 1) else 1)
        pids.append(pid)
    print("forked", flush=True)
    signal.sigwait([signal.SIGUSR1])
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if any(codes) or not right(data, 1):
        sys.exit(f"wrong bytes: the children said {codes}")
    print("verified")


main()
