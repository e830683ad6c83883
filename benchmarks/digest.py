"""Says which kernels a log or a result belongs to: a digest of their code, whatever its comments and layout.

It is computed from the syntax trees, needs neither torch nor Triton, and is the same under every version of Python.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

OPS = Path(__file__).parent.parent / "src" / "edgewise" / "ops"


def kernels_digest(folder: Path = OPS) -> str:
    """Return the digest of every file of a folder that imports Triton; `ops` itself has the kernels of umas_fast_gpu."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py"), key=lambda item: item.relative_to(folder).as_posix()):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if "triton" in _imported(tree):
            _remove_docstrings(tree)
            digest.update(f"{path.relative_to(folder).as_posix()}\n".encode())
            digest.update("\n".join(_lines(tree)).encode())
    return digest.hexdigest()[:16]


def _imported(tree: ast.AST) -> set[str]:
    """Return the top-level packages that a file imports."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [item.name for item in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return {name.split(".")[0] for name in names}


def _remove_docstrings(tree: ast.AST) -> None:
    """Take out strings that stand alone: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, [item for item in statements if not _is_string(item)])


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _lines(value: object, depth: int = 0) -> Iterator[str]:
    """Walk a tree, leaving out fields without content: versions of Python differ in which of these there are."""
    if isinstance(value, ast.AST):
        yield f"{depth} {type(value).__name__}"
        for name, field in ast.iter_fields(value):
            if field is not None and field != [] and name != "kind":
                yield f"{depth} .{name}"
                yield from _lines(field, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _lines(item, depth)
    else:
        yield f"{depth} {value!r}"
