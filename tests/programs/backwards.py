"""Fills memory of many mappings, goes over it backwards, and checks every page: reading it,
writing each, reading it again.

Usage: backwards.py MIB PASSES"""

import mmap
import sys

PAGE = 4096
pages = int(sys.argv[1]) * 256
memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
# Mappings of 50 pages: what is brought at once lies in two of them now and then.
for page in range(0, pages, 100):
    memory.madvise(mmap.MADV_DONTDUMP, page * PAGE, min(50, pages - page) * PAGE)


def content(page, generation):
    return (page * 1_000_003 + generation).to_bytes(8, "little")


for page in range(pages):
    for at in (0, PAGE - 8):
        memory[page * PAGE + at : page * PAGE + at + 8] = content(page, 0)

checked = 0
for generation in range(int(sys.argv[2])):
    for page in reversed(range(pages)):
        first = page * PAGE
        # Every other pass touches a page by writing it first.
        if generation % 2:
            memory[first + 8 : first + 16] = content(page, generation)
        for at in (0, PAGE - 8):
            assert memory[first + at : first + at + 8] == content(page, generation), f"page {page} is wrong"
            memory[first + at : first + at + 8] = content(page, generation + 1)
        checked += 1
print("checked", checked)
