#!/usr/bin/env python3
"""Checks the Markdown of this repository, and what the source says of it.

A line over 100 columns, a link to a file or heading that does not exist, and a page of docs/ that
docs/README.md does not list each fail. Tables and addresses can't be broken, so lines with them may
be longer. A file named as docs/X.md in any other file must exist. Each message of an error type must
stand in docs/troubleshooting.md or docs/rdma.md, and each layout's version in docs/formats.md.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100
FENCE = re.compile(r"\s*(```|~~~)")
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
PAGE = re.compile(r"\bdocs/[A-Za-z0-9_-]+\.md\b")
ERROR = re.compile(r'#\[error\(\s*"((?:[^"\\]|\\.|\\\n)*)"', re.S)
MAGIC = re.compile(r'b"(annex[a-z]+(?:\\0)?)"')
VERSION = re.compile(r"^const VERSION: u32 = (\d+);", re.M)
# So much of a part of a message must stand in the manual. Shorter parts tell nothing.
TOLD, PART = 24, 10
# They never leave the thread in which they arise.
INTERNAL = {"the send queue is full", "the lane has too much under way"}
TESTS = re.compile(r"(^|/)tests/|/tests\.rs$|testbed|/sim(\.rs|/)")

problems = []


def tracked():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )
    files = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [file for file in files if file.is_file() and "third_party" not in file.parts]


def lines(file):
    """Each line with its number, and whether it stands in a block of code."""
    in_code = False
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if FENCE.match(line):
            in_code = not in_code
            yield number, line, True
        else:
            yield number, line, in_code


def anchors(file):
    """The anchors that GitHub makes of the headings of a file."""
    found, seen = set(), {}
    for _, line, in_code in lines(file):
        heading = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if in_code or not heading:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1))
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        again = seen.get(name, 0)
        seen[name] = again + 1
        found.add(f"{name}-{again}" if again else name)
    return found


def problem(file, number, what):
    problems.append(f"{file.relative_to(ROOT)}:{number}: {what}")


def check_link(file, number, target):
    if re.match(r"[a-z]+:", target):
        return
    path, _, anchor = target.partition("#")
    goal = (file.parent / path).resolve() if path else file
    if not goal.exists():
        problem(file, number, f"there is no {path}")
    elif anchor and goal.suffix == ".md" and anchor not in anchors(goal):
        problem(file, number, f"{goal.relative_to(ROOT)} has no heading for #{anchor}")


def check_markdown(file):
    for number, line, in_code in lines(file):
        if len(line) > COLUMNS and not line.startswith("|") and "://" not in line:
            problem(file, number, f"{len(line)} columns, {COLUMNS} are the most")
        if not in_code:
            plain = re.sub(r"`[^`]*`(?!\])", "", line)
            for link in LINK.finditer(plain):
                check_link(file, number, link.group(1) or link.group(2))


def check_mentions(file):
    try:
        text = file.read_text()
    except UnicodeDecodeError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        for page in PAGE.findall(line):
            if not (ROOT / page).exists():
                problem(file, number, f"there is no {page}")


def check_errors(sources):
    """A message may be shortened in the manual. One of the parts between its blanks must be there."""
    pages = [(ROOT / "docs" / name).read_text() for name in ("troubleshooting.md", "rdma.md")]
    manual = " ".join("".join(pages).replace("`", "").split())
    for file in sources:
        text = file.read_text()
        for error in ERROR.finditer(text):
            message = re.sub(r"\\\n\s*", "", error.group(1)).replace('\\"', '"').replace("`", "")
            parts = [part[:TOLD].rstrip(" :;,.'(") for part in re.split(r"\{[^}]*\}", message)]
            parts = [part for part in parts if len(part) >= PART]
            if parts and message not in INTERNAL and not any(part in manual for part in parts):
                number = text.count("\n", 0, error.start()) + 1
                problem(file, number, f"docs/troubleshooting.md does not tell of: {message}")


def check_versions(sources):
    """The table of docs/formats.md has a row for each magic, with the version that the same file knows."""
    rows = re.findall(r"^\| [^|]* \| `(annex[^`]*)` \| (\d+) \|", (ROOT / "docs/formats.md").read_text(), re.M)
    told = dict(rows)
    for file in sources:
        text = file.read_text()
        version = VERSION.search(text)
        for magic in {found.group(1) for found in MAGIC.finditer(text)} if version else ():
            if told.get(magic) != version.group(1):
                problem(file, 1, f"docs/formats.md does not tell of {magic}, version {version.group(1)}")


def check_index(index, pages):
    named = {name for _, line, _ in lines(index) for name in re.findall(r"\]\(([\w-]+\.md)", line)}
    for page in pages:
        if page != index and page.name not in named:
            problem(index, 1, f"{page.name} is not listed")


def main():
    files = tracked()
    markdown = [file for file in files if file.suffix == ".md"]
    for file in markdown:
        check_markdown(file)
    for file in files:
        if file != Path(__file__).resolve():
            check_mentions(file)
    sources = [file for file in files if file.suffix == ".rs"]
    sources = [f for f in sources if not TESTS.search(str(f.relative_to(ROOT)))]
    check_errors(sources)
    check_versions(sources)
    check_index(ROOT / "docs/README.md", [f for f in markdown if f.parent == ROOT / "docs"])
    print("\n".join(problems) if problems else f"{len(markdown)} pages of Markdown: links, lines, errors and versions are good")
    return bool(problems)


sys.exit(main())
