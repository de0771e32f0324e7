"""A pre-forking server: the parent loads a large dict, workers inherit it, serve it over a
socket, change their own copy and check it. The parent is also the client. Arguments: MiB of data,
seconds to serve."""
import hashlib
import os
import random
import socket
import sys
import time

MIB, SECONDS = int(sys.argv[1]), float(sys.argv[2])
WORKERS = 4
COUNT = MIB * 900  # an entry takes about 1.1 KiB


def value(i, generation):
    return (hashlib.sha256(f"{i}/{generation}".encode()).hexdigest() * 16).encode()


def serve(listener, table):
    generation = {}
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as stream:
            for line in stream:
                word, *rest = line.split()
                if word == b"get":
                    i = int(rest[0])
                    stream.write(b"%d " % generation.get(i, 0) + table[i] + b"\n")
                elif word == b"set":
                    i = int(rest[0])
                    generation[i] = generation.get(i, 0) + 1
                    table[i] = value(i, generation[i])
                    stream.write(b"ok\n")
                elif word == b"end":
                    for i in range(COUNT):
                        expected = value(i, generation.get(i, 0))
                        if table[i] != expected:
                            print(f"worker {os.getpid()}: entry {i} is wrong", file=sys.stderr)
                            os._exit(1)
                    stream.write(b"ok %d\n" % COUNT)
                    stream.flush()
                    os._exit(0)
                stream.flush()


def main():
    table = {i: value(i, 0) for i in range(COUNT)}
    listener = socket.socket(socket.AF_INET)
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    children = []
    for _ in range(WORKERS):
        pid = os.fork()
        if pid == 0:
            try:
                serve(listener, table)
            finally:
                os._exit(2)
        children.append(pid)
    print("serving", flush=True)
    # One connection stays with one worker for as long as it is open.
    streams = [socket.create_connection(listener.getsockname()).makefile("rwb") for _ in range(WORKERS)]
    dice, asked, deadline = random.Random(1), 0, time.time() + SECONDS
    while time.time() < deadline:
        stream, i = dice.choice(streams), dice.randrange(COUNT)
        if dice.random() < 0.3:
            stream.write(b"set %d\n" % i)
            stream.flush()
            assert stream.readline() == b"ok\n"
        else:
            stream.write(b"get %d\n" % i)
            stream.flush()
            generation, got = stream.readline().split()
            assert got == value(i, int(generation)), f"entry {i} was served wrong"
        asked += 1
        if asked % 64 == 0:
            i = dice.randrange(COUNT)
            assert table[i] == value(i, 0), f"the parent's entry {i} is wrong"
    for stream in streams:
        stream.write(b"end\n")
        stream.flush()
        assert stream.readline() == b"ok %d\n" % COUNT
    for pid in children:
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"worker {pid} ended with {status:#x}"
    for i in range(COUNT):
        assert table[i] == value(i, 0), f"the parent's entry {i} is wrong at the end"
    print(f"asked {asked} checked {COUNT * (WORKERS + 1)}")


main()
