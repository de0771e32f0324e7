"""Fills memory with one page, again and again until it is told to end, and looks whether it is
still that page everywhere. Arguments: MiB."""

import signal
import sys

PAGE = (b"annex must never show this to a donor, nor twice to anybody. " * 68)[:4096]
ended = False


def end(*_):
    global ended
    ended = True


signal.signal(signal.SIGTERM, end)
memory = bytearray(PAGE * (int(sys.argv[1]) * 256))
print("ready", flush=True)
rounds = 0
while not ended:
    for at in range(0, len(memory), 4096):
        if memory[at : at + 4096] != PAGE:
            sys.exit(f"WRONG at {at}")
        memory[at : at + 4096] = PAGE
    rounds += 1
print(f"{rounds} rounds, all of it right")
