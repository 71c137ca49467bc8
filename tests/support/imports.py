"""What files of the project import, call and register, read off the source."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

FACE = "__init__"  # of a package, which exports names of all floors

ROOMS = ("impls", "suites", "reports")
SOURCE = ("ssmperf", *ROOMS, "examples")
# what backends of every recurrence may use: host code for Triton and CUDA, derivatives, autocast, peers
SHARED = ("_triton", "_cuda", "_autograd", "_autocast", "_states", "_peer", "_fla")
NO_RECURRENCES = ("models", "identities", *SHARED)

Graph = dict[str, list[str]]


def python_files(root: Path, *folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (root / folder).rglob("*.py"))


def parse(file: Path) -> ast.Module:
    return parsed(file.read_text())


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def statements(tree: ast.AST, *, typing: bool = True) -> Iterator[ast.AST]:
    """Walk the statements of a tree, and what holds some; expressions, most of its nodes, are left out.

    typing: whether with what stands under `if TYPE_CHECKING`.
    """
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for node in getattr(tree, field, ()):
            if not typing and isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
                yield from statements(ast.Module(node.orelse, []), typing=False)
            else:
                yield node
                yield from statements(node, typing=typing)


def called(call: ast.Call) -> str:
    """The last part of the name that is called."""
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def imports(root: Path, file: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import; a relative one is resolved to its path from the root."""
    package = file.relative_to(root).parent.parts
    for node in statements(parse(file)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = package[: len(package) - node.level + 1]
                if node.level > len(package):
                    kept = ("..",)
                base = "/" + ".".join([*kept, *([base] if base else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def registered(file: Path) -> list[tuple[str, str]]:
    """List the backends that a file registers: recurrence and name."""
    return [
        (call.args[0].value, keyword.value.value)
        for node in statements(parse(file))
        if isinstance(node, ast.FunctionDef)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and called(call) == "backend"
        and isinstance(call.args[0], ast.Constant)
        for keyword in call.keywords
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant)
    ]  # fmt: skip


def modules(package: Path) -> dict[str, ast.Module]:
    """Parse a package by dotted name below it; a folder is named without its __init__."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == FACE else parts)] = parse(file)
    return found


def graph_of(package: Path, trees: dict[str, ast.Module]) -> Graph:
    """List the files of the package that each file imports anywhere but for annotations."""
    graph = {}
    for name, tree in trees.items():
        path = package.joinpath(*name.split("."))
        folder = path if path.is_dir() else path.parent
        inside = folder.relative_to(package).parts
        graph[name] = sorted(set(imported(tree, inside, known=set(trees), package=package.name)) - {name})
    return graph


def imported(tree: ast.Module, folder: tuple[str, ...], *, known: set[str], package: str) -> Iterator[str]:
    """List the imports of one file: those by the package's absolute name, and relative ones."""
    for node in statements(tree, typing=False):
        if isinstance(node, ast.Import):
            yield from (
                alias.name.partition(".")[2] for alias in node.names if alias.name.startswith(f"{package}.")
            )
        elif isinstance(node, ast.ImportFrom):
            module = node.module.split(".") if node.module else []
            if node.level:
                base = ".".join([*folder[: len(folder) - node.level + 1], *module])
            elif module[0] == package:
                base = ".".join(module[1:])
            else:
                continue
            for alias in node.names:
                inner = f"{base}.{alias.name}" if base else alias.name
                yield inner if inner in known else base or FACE


def circles(graph: Graph) -> list[list[str]]:
    """Every circle of files that a walk from each file meets, once; packages are not walked through."""
    found: dict[frozenset[str], list[str]] = {}
    packages = {name.rpartition(".")[0] for name in graph}
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> None:
        if name in path:
            circle = path[path.index(name) :]
            found.setdefault(frozenset(circle), [*circle, name])
        elif name not in done and name in graph and name not in packages and name != FACE:
            for target in graph[name]:
                walk(target, [*path, name])
            done.add(name)

    for name in graph:
        walk(name, [])
    return list(found.values())


def imports_torch(tree: ast.Module) -> bool:
    for node in statements(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name.split(".")[0] == "torch" for name in names):
            return True
    return False
