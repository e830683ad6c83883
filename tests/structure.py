"""Reads source files and reports where they break the rules of the house; `test_structure.py` says which rules hold where.

Nothing is imported: everything is read off the syntax trees.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LAYERS = (
    ("errors",),
    ("settings",),
    ("systems",),
    ("cell_list", "so3"),
    ("nvalchemi_list",),
    ("neighbors",),
    ("ops",),
    ("model",),
    ("weights",),
    ("engine",),
    ("results",),
    ("potential",),
    ("adapters",),
    ("cli",),
)
"""A module imports only from its own package and from layers before its own; modules of one layer know nothing of each other."""

RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}

ALWAYS = {
    "systems": {"numpy", "torch"},
    "cell_list": {"numpy", "torch"},
    "nvalchemi_list": {"torch"},
    "neighbors": {"numpy", "torch", "vesin"},
    "so3": {"numpy", "torch"},
    "ops": {"numpy", "torch", "triton"},
    "model": {"numpy", "torch"},
    "weights": {"numpy", "safetensors", "torch"},
    "engine": {"numpy", "torch", "triton"},
    "results": {"numpy", "torch"},
    "potential": {"numpy", "torch"},
    "adapters": {"ase", "numpy", "torch", "torch_sim", "lammps"},
    "cli": {"ase", "click", "numpy", "rich", "typer"},
}
"""Packages of others that a layer may import anywhere."""

LATE = {
    "systems": {"ase"},
    "nvalchemi_list": {"nvalchemiops"},
    "weights": {"huggingface_hub"},
    "potential": {"ase"},
    "cli": {"huggingface_hub", "matplotlib", "phonopy", "safetensors", "seekpath", "torch"},
}
"""Packages of others that a layer may import inside functions and for annotations only."""


@dataclass(frozen=True)
class Import:
    """One imported module.

    Attributes:
        target: Full name of the module.
        names: What is taken from it; empty for `import target`.
        line: Line number.
        late: Inside a function, or for annotations only.
    """

    target: str
    names: tuple[str, ...]
    line: int
    late: bool


@dataclass(frozen=True)
class Module:
    """A source file of a package.

    Attributes:
        path: The file.
        name: Full module name.
        tree: Its syntax tree.
        modules: Full names of all modules of the package.
    """

    path: Path
    name: str
    tree: ast.Module
    modules: frozenset[str]

    @property
    def layer(self) -> str:
        """Name of the layer, or an empty string for the package itself; `python -m` is the command line."""
        name = (self.name.split(".")[1:] or [""])[0]
        return LAYERS[-1][0] if name == "__main__" else name

    def imports(self) -> list[Import]:
        """Return every import, those inside functions and those for annotations included."""
        return [item for found in _walk(self.tree, late=False) for item in self._resolved(*found)]

    def _resolved(self, node: ast.AST, late: bool) -> Iterator[Import]:
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(alias.name, (), node.lineno, late)
            case ast.ImportFrom():
                target = self._absolute(node)
                # What is taken from a package may be a module of it.
                inner = [alias.name for alias in node.names if f"{target}.{alias.name}" in self.modules]
                rest = tuple(alias.name for alias in node.names if alias.name not in inner)
                yield from (Import(f"{target}.{name}", (), node.lineno, late) for name in inner)
                if rest:
                    yield Import(target, rest, node.lineno, late)
            case ast.Call(args=[ast.Constant(value=str(target)), *_]) if _called(node) in (
                "import_module",
                "__import__",
            ):
                yield Import(target, (), node.lineno, late)
            case _:
                pass

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".") + (["__init__"] if self.path.stem == "__init__" else [])
        return ".".join([*parts[: -node.level], *([node.module] if node.module else [])])


def read_package(root: Path) -> list[Module]:
    """Read every module of the package in a folder."""
    names = {path: _module_name(path, root) for path in sorted(root.rglob("*.py"))}
    known = frozenset(names.values())
    return [Module(path, name, ast.parse(path.read_text(encoding="utf-8")), known) for path, name in names.items()]


def layering_violations(modules: list[Module], package: str) -> list[str]:
    """Return one sentence for each import that goes against the direction of the layers."""
    found = []
    for module in modules:
        if module.name == package:
            # The front of the package names what it loads later.
            found += [
                f"{module.path}:{item.line} the front of the package imports {item.target} when it is loaded"
                for item in module.imports()
                if item.target.split(".")[0] == package and not item.late
            ]
            continue
        if module.layer not in RANKS:
            found.append(f"{module.path} is in no layer; LAYERS in tests/structure.py has to name {module.layer}")
            continue
        for item in module.imports():
            if item.target.split(".")[0] == package and (reason := _wrong_direction(module, item, package)):
                found.append(f"{module.path}:{item.line} {module.name} imports {item.target}: {reason}")
    return found


def _wrong_direction(module: Module, item: Import, package: str) -> str:
    if item.target == package:
        # The last layer may use what users use; for all others the front hides which module is meant.
        return "" if module.layer == LAYERS[-1][0] else "name the module that is meant"
    layer = item.target.split(".")[1]
    if layer not in RANKS:
        return "it is in no layer"
    if layer == module.layer:
        if layer == "adapters" and not _shared_by_adapters(module.name, item.target):
            return "adapters do not know one another"
        return ""
    if module.layer == "ops" and layer not in ("errors", "so3"):
        return "ops know tensors only"
    if RANKS[layer] < RANKS[module.layer]:
        return ""
    return f"{layer} does not come before {module.layer}"


def _shared_by_adapters(importer: str, target: str) -> bool:
    names = target.split(".")[2:]
    return not names or names[0].startswith("_") or names[0] == (importer.split(".")[2:] or [""])[0]


def foreign_import_violations(modules: list[Module], package: str) -> list[str]:
    """Return one sentence for each import of a package of others where it does not belong."""
    found = []
    for module in modules:
        for item in module.imports():
            name = item.target.split(".")[0]
            if name == package or name in sys.stdlib_module_names or name in ALWAYS.get(module.layer, ()):
                continue
            if name in LATE.get(module.layer, ()):
                if not item.late:
                    found.append(f"{module.path}:{item.line} imports {name} at once; import it inside a function")
                continue
            found.append(f"{module.path}:{item.line} imports {name}, which {module.layer or 'the front'} must not know")
    return found


def private_import_violations(paths: list[Path], package: str) -> list[str]:
    """Return one sentence for each name with an underscore that scripts take from the package."""
    found = []
    for path in paths:
        module = Module(path, path.stem, ast.parse(path.read_text(encoding="utf-8")), frozenset())
        for item in module.imports():
            parts = [*item.target.split("."), *item.names]
            if parts[0] == package and any(part.startswith("_") and not part.startswith("__") for part in parts):
                found.append(f"{path}:{item.line} imports {'.'.join(parts)}, which is not public")
    return found


def environment_reads(modules: list[Module]) -> list[str]:
    """Return one sentence for each place that reads or writes environment variables."""
    names = ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv")
    found = []
    for module in modules:
        lines = [item.line for item in module.imports() if item.target == "os" and set(item.names) & set(names)]
        lines += [
            node.lineno for node in ast.walk(module.tree) if isinstance(node, ast.Attribute) and node.attr in names
        ]
        found += [f"{module.path}:{line} reads the environment" for line in sorted(lines)]
    return found


def public_definitions(modules: list[Module]) -> dict[str, bool]:
    """Return for each public module, class, function and method whether it has a docstring."""
    found = {}
    for module in modules:
        if any(part.startswith("_") for part in module.name.split(".")):
            continue
        if module.tree.body:
            found[module.name] = ast.get_docstring(module.tree) is not None
        for name, node in _definitions(module.tree, module.name):
            found[name] = ast.get_docstring(node) is not None
    return found


def functions(path: Path) -> set[str]:
    """Return the names of the functions at the top of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def _definitions(
    parent: ast.Module | ast.ClassDef, prefix: str
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        decorators = {
            item.attr if isinstance(item, ast.Attribute) else getattr(item, "id", "") for item in node.decorator_list
        }
        if decorators & {"overload", "setter", "deleter"}:
            continue
        yield f"{prefix}.{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node, f"{prefix}.{node.name}")


def _walk(node: ast.AST, *, late: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield every node, and whether it is inside a function or for annotations only."""
    yield node, late
    inside = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for child in node.body:
            yield from _walk(child, late=True)
        for child in node.orelse:
            yield from _walk(child, late=inside)
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, late=inside)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _module_name(path: Path, root: Path) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
