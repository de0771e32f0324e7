"""A client of the KV API over TLS. Arguments: what to do, the port, the CA's file, and, if clients
need one, the files of a certificate and its key.

large        values of 10 MB there and back, and the answer to QUIT before the end
half_open    many connections that say nothing but half a greeting; one more is served all the same
serial       prints the serial number of the server's certificate
ping         prints what PING is answered
unread       asks for 64 MB and reads nothing until something comes on stdin
"""
import hashlib
import socket
import ssl
import sys

VALUE = 10_000_000


def connect(port, ca, *own):
    context = ssl.create_default_context(cafile=ca)
    if own:
        context.load_cert_chain(*own)
    raw = socket.create_connection(("127.0.0.1", port), timeout=60)
    return context.wrap_socket(raw, server_hostname="localhost")


def send(client, *words):
    words = [word if isinstance(word, bytes) else word.encode() for word in words]
    client.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))


def main():
    what, port, *files = sys.argv[1:]
    port = int(port)
    if what == "half_open":
        held = []
        for _ in range(600):
            client = socket.create_connection(("127.0.0.1", port), timeout=60)
            client.sendall(b"\x16\x03\x01\x02\x00\x01")
            held.append(client)
    client = connect(port, *files)
    if what == "serial":
        print(client.getpeercert()["serialNumber"])
        return
    answers = client.makefile("rb")
    if what in ("ping", "half_open"):
        send(client, "PING")
        print(answers.readline().decode().strip())
        return
    value = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(VALUE // 32))
    send(client, "SET", "large", value)
    assert answers.readline() == b"+OK\r\n"
    if what == "unread":
        for _ in range(7):
            send(client, "GET", "large")
        print("asked", flush=True)
        sys.stdin.read(1)
        return
    for _ in range(3):
        send(client, "GET", "large")
    send(client, "QUIT")
    for _ in range(3):
        assert answers.readline() == b"$%d\r\n" % VALUE
        assert answers.read(VALUE + 2) == value + b"\r\n", "another value"
    assert answers.readline() == b"+OK\r\n" and answers.read() == b""
    print("all right")


main()
