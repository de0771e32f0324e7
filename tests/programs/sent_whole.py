"""A pipeline that redis-py sends whole before it reads an answer: sent_whole.py HOST:PORT|SOCKET
COUNT BYTES.

Ends with 0 if each of COUNT answers is the value of BYTES."""

import sys

import redis

where, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if where.startswith("/"):
    server = redis.Redis(unix_socket_path=where)
else:
    host, port = where.rsplit(":", 1)
    server = redis.Redis(host=host, port=int(port))
value = b"x" * size
server.set("large", value)
# What came is looked at and let go of: together the answers are more than there is memory for.
server.set_response_callback("GET", lambda answer, **_: answer == value)
pipeline = server.pipeline(transaction=False)
for _ in range(count):
    pipeline.get("large")
answers = pipeline.execute()
assert len(answers) == count and all(answer is True for answer in answers)
