#!/usr/bin/env python3
"""Checks how the Rust sources are arranged.

Files of one crate that import each other in a circle, a file over 600 lines and a comment over 100
columns each fail, and so does a lock of std's in what we ship: locks there are parking_lot's. A name
that a module only passes on (`pub use`) counts as imported from the file that defines it. Code that
is compiled for tests only is not looked at for circles.

`check-house.py NAME...` looks for the circles of these crates only.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES, COLUMNS = 600, 100
MOD = re.compile(
    r"(?P<test>#\[cfg\((?:all\()?(?:any\()?test\b[^\]]*\]\s*)?(?:#\[(?P<attr>[^\]]*)\]\s*)*"
    r"(?:pub(?:\([^)]*\))?\s+)?mod\s+(?P<name>\w+)\s*(?P<end>[;{])"
)
USE = re.compile(r"(?P<pub>pub(?:\([^)]*\))?\s+)?\buse\s+(?P<tree>[^;]+);")
PATH = re.compile(r"\b(?:crate|self|super)(?:::\w+)+")

problems = []


def tracked(pattern):
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )
    files = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [file for file in files if file.is_file() and "third_party" not in file.parts]


def without_words(code):
    """The code without its comments, strings and characters."""
    token = re.compile(
        r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\'\\])\'', re.S
    )
    return token.sub(" ", code)


def block_end(code, start):
    depth = 0
    for at in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[at], 0)
        if depth == 0:
            return at + 1
    return len(code)


def expand(tree, before=()):
    """The paths of a use tree, each with the name that it gets here."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        path, _, alias = tree.partition(" as ")
        parts = before + tuple(part.strip() for part in path.split("::") if part.strip())
        if parts and parts[-1] == "self":
            parts = parts[:-1]
        yield parts, alias.strip() or (parts[-1] if parts else "")
        return
    head = before + tuple(part.strip() for part in tree[:brace].split("::") if part.strip())
    depth, part = 0, ""
    for letter in tree[brace + 1:tree.rindex("}")] + ",":
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            if part.strip():
                yield from expand(part, head)
            part = ""
        else:
            part += letter


class Module:
    def __init__(self, file, parent, name):
        self.file, self.parent, self.name = file, parent, name
        self.children, self.uses, self.code = {}, [], ""

    def root(self):
        return self.parent.root() if self.parent else self


def read_module(file, code, parent, name, folder):
    """The module tree of a crate, without what is compiled for tests only."""
    module = Module(file, parent, name)
    at, kept = 0, ""
    for found in MOD.finditer(code):
        if found.start() < at:
            continue
        kept += code[at:found.start()]
        child = found["name"]
        is_test = found["test"] or "cfg(test" in (found["attr"] or "")
        if found["end"] == "{":
            at = block_end(code, found.end() - 1)
            if not is_test:
                inner = code[found.end():at - 1]
                module.children[child] = read_module(file, inner, module, child, folder / child)
            continue
        at = found.end()
        if is_test:
            continue
        for path, below in ((folder / f"{child}.rs", folder / child),
                            (folder / child / "mod.rs", folder / child)):
            if path.is_file():
                inner = without_words(path.read_text())
                module.children[child] = read_module(path, inner, module, child, below)
    code = kept + code[at:]
    for use in USE.finditer(code):
        module.uses += [(bool(use["pub"]), path, name) for path, name in expand(use["tree"])]
    module.code = USE.sub(" ", code)
    return module


def resolve(module, path, seen=()):
    """The module that defines what the path names, or None where it leads out of the crate."""
    here, first = module, True
    for nth, part in enumerate(path):
        if first and part == "crate":
            here = module.root()
        elif first and part == "self":
            pass
        elif part == "super":
            here = here.parent
            if here is None:
                return None
        elif part in here.children:
            here = here.children[part]
        elif part == "*":
            return here
        else:
            for _, target, name in here.uses:
                if name == part and (here, part) not in seen:
                    found = resolve(here, target + path[nth + 1:], seen + ((here, part),))
                    return found
            if first:
                return None
            for _, target, name in here.uses:
                if name == "*" and (here, target) not in seen:
                    found = resolve(here, target[:-1] + path[nth:], seen + ((here, target),))
                    if found and re.search(rf"\b{path[-1]}\b", found.code):
                        return found
            return here
        first = False
    return here


def arrows(module, found):
    for is_passed_on, path, name in module.uses:
        target = resolve(module, path)
        if is_passed_on and not re.search(rf"\b{re.escape(name)}\b", module.code):
            continue
        add(found, module, target, name)
    for path in PATH.findall(module.code):
        add(found, module, resolve(module, tuple(path.split("::"))), path.split("::")[-1])
    for name in module.children:
        for path in re.findall(rf"(?<![\w:]){name}(?:::\w+)+", module.code):
            add(found, module, resolve(module, tuple(path.split("::"))), path.split("::")[-1])
    for child in module.children.values():
        arrows(child, found)


def add(found, module, target, name):
    if target is not None and target.file != module.file:
        found.setdefault(module.file, {}).setdefault(target.file, set()).add(name)


def circles(graph):
    """Tarjan's strongly connected components of more than one file."""
    index, low, stack, result = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(part) > 1:
                result.append(part)

    for node in list(graph):
        if node not in index:
            visit(node)
    return result


def check_circles(manifest):
    for start in ("lib.rs", "main.rs"):
        file = manifest.parent / "src" / start
        if not file.is_file():
            continue
        graph = {}
        arrows(read_module(file, without_words(file.read_text()), None, "crate", file.parent), graph)
        for circle in circles(graph):
            told = [
                f"    {one.relative_to(ROOT)} -> {other.relative_to(ROOT)}: "
                f"{', '.join(sorted(graph[one][other]))}"
                for one in sorted(circle) for other in sorted(graph.get(one, {})) if other in circle
            ]
            problems.append(f"{len(circle)} files import each other:\n" + "\n".join(told))


def check_lines(file):
    lines = file.read_text().splitlines()
    name = file.relative_to(ROOT)
    if len(lines) > LINES:
        problems.append(f"{name}: {len(lines)} lines, {LINES} at most")
    for number, line in enumerate(lines, 1):
        comment = re.search(r"(^|\s)//", re.sub(r'"(?:\\.|[^"\\])*"', "", line))
        is_table = re.match(r"\s*//[/!]\s*\|", line)
        if len(line) > COLUMNS and comment and not is_table and "://" not in line:
            problems.append(f"{name}:{number}: a comment of {len(line)} columns, {COLUMNS} at most")


def check_locks(file):
    """Tests may have std's: those tell of a thread that panicked."""
    name = file.relative_to(ROOT)
    if "tests" in name.parts or file.name == "tests.rs":
        return
    code = without_words(file.read_text())
    for use in re.findall(r"std::sync::(?:\{[^}]*\}|\w+)", code):
        if taken := re.search(r"\b(?:Mutex|RwLock|Condvar)\b", use):
            problems.append(f"{name}: {taken[0]} of std, where ours are parking_lot's")


def main():
    sys.setrecursionlimit(10_000)
    wanted = sys.argv[1:]
    for manifest in tracked("*Cargo.toml"):
        package = re.search(r'^name = "(.*)"', manifest.read_text(), re.M)
        if package and (not wanted or package[1] in wanted):
            check_circles(manifest)
    if not wanted:
        for file in tracked("*.rs"):
            check_lines(file)
            check_locks(file)
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(f"{len(problems)} problems in how the sources are arranged")


if __name__ == "__main__":
    main()
