"""Holds the packages and their tests against the limits of CONTRIBUTING.md: `python scripts/structure.py`.

Reads source files only, as syntax trees. The exceptions are in structure.toml beside it, each with its size, and the
list can only shrink: a violation that is larger than its exception fails, and so does an exception that is larger than
its violation.
`--shrink` writes the list anew, never with a new or a larger exception.
Exit code 0: all limits are kept. 1: some are not.
"""

from __future__ import annotations

import ast
import collections
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".toml")
SOURCE_ROOTS = ("avro", "sink", "spark_jobs", "controller")

MODULES = 12
PARAMETERS = 6
LINES = 700
TEST_FILES = 25

#: rule -> (the subject of a violation -> how bad it is)
Found = dict[str, dict[str, int]]

RULES = {
    "modules": f"a folder has at most {MODULES} modules",
    "lines": f"a module has at most {LINES} lines",
    "parameters": f"a function has at most {PARAMETERS} parameters; options of commands are not counted",
    "class_names": "the name of a public class is defined once",
    "circles": "folders do not import each other in a circle",
    "private": "a name or module with a leading underscore is imported in its own folder only",
    "test_imports": "no test imports another test: what they share is in tests/support",
    "test_folders": "a unit test lies in tests/unit below the path of a product folder, or in judges or repository",
    "test_clocks": "a test sets a module's name `time`, not a function of `time`, which other threads call as well",
    "test_files": f"a folder of tests has at most {TEST_FILES} files, and no two test files have one name",
}


@dataclass(frozen=True, slots=True)
class Module:
    """A source file: its dotted name, the folder's dotted name, and its syntax tree."""

    name: str
    folder: str
    path: Path
    tree: ast.Module
    lines: int


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, at any depth of a module, unless it is for types alone."""

    source: Module
    module: str
    name: str

    @property
    def wanted(self) -> str:
        """What is imported, dotted."""
        return f"{self.module}.{self.name}" if self.name else self.module


def modules(root: Path) -> list[Module]:
    """Read all modules of the product."""
    found = []
    for top in SOURCE_ROOTS:
        for path in sorted((root / top / "tandem").rglob("*.py")):
            parts = path.relative_to(root / top).with_suffix("").parts
            folder = ".".join(parts[:-1])
            name = folder if parts[-1] == "__init__" else ".".join(parts)
            text = path.read_text("utf-8")
            found.append(Module(name, folder, path, ast.parse(text), text.count("\n")))
    return found


def imports(module: Module) -> Iterator[Import]:
    """Give what a module imports at run time, in functions as well."""
    waiting: list[ast.AST] = [module.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
        elif isinstance(node, ast.ImportFrom):
            yield from (Import(module, node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (Import(module, alias.name, "") for alias in node.names)
        else:
            waiting.extend(ast.iter_child_nodes(node))


def folder_sizes(all_of_them: Iterable[Module]) -> dict[str, int]:
    """Return the folders that have too many modules."""
    counts = collections.Counter(module.folder for module in all_of_them if module.path.name != "__init__.py")
    return {folder: count for folder, count in counts.items() if count > MODULES}


def long_modules(all_of_them: Iterable[Module]) -> dict[str, int]:
    """Return the modules that are too long."""
    return {module.name: module.lines for module in all_of_them if module.lines > LINES}


def wide_functions(all_of_them: Iterable[Module]) -> dict[str, int]:
    """Return the functions with too many parameters."""
    found = {}
    for module in all_of_them:
        options = _option_types(module.tree)
        for owner, function in _functions(module.tree, module.name):
            count = _parameters(function, options)
            if count > PARAMETERS and not _is_command(function):
                found[f"{owner}.{function.name}"] = count
    return found


def _functions(node: ast.AST, owner: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        inner = owner
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner, child
            inner = f"{owner}.{child.name}"
        elif isinstance(child, ast.ClassDef):
            inner = f"{owner}.{child.name}"
        yield from _functions(child, inner)


def _option_types(tree: ast.Module) -> set[str]:
    """Return names of the module that are annotations of command line options: its own, and imported ones by name."""
    own = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and "typer." in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    imported = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and ".cli." in (node.module or "")
        for alias in node.names
        if alias.name.endswith(("Option", "Argument"))
    }
    return own | imported


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef, options: set[str]) -> int:
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    plain = [each for each in given if each.annotation is None or not _is_option(each.annotation, options)]
    return len(plain) - (bool(plain) and plain[0].arg in {"self", "cls", "mcs"})


def _is_option(annotation: ast.expr, options: set[str]) -> bool:
    text = ast.unparse(annotation)
    return text in options or "typer.Option" in text or "typer.Argument" in text


def _is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(".command" in (text := ast.unparse(each)) or ".callback" in text for each in function.decorator_list)


def shared_class_names(all_of_them: Iterable[Module]) -> dict[str, int]:
    """Return the names that several public classes have."""
    counts = collections.Counter(
        node.name
        for module in all_of_them
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name: count for name, count in counts.items() if count > 1}


def circles(all_of_them: list[Module]) -> dict[str, int]:
    """Return the groups of folders that import each other in a circle, each with how many pairs of them import."""
    folders = {module.folder for module in all_of_them}
    homes = {module.name: module.folder for module in all_of_them}
    edges: dict[str, set[str]] = {folder: set() for folder in folders}
    for module in all_of_them:
        for one in imports(module):
            home = homes.get(one.wanted) or homes.get(one.module)
            if home is not None and home != module.folder:
                edges[module.folder].add(home)
    groups = _strongly_connected(edges)
    return {
        " ".join(sorted(group)): sum(len(edges[folder] & group) for folder in group)
        for group in groups
        if len(group) > 1
    }


def _strongly_connected(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the groups in which each reaches each other (by what each reaches: there are few)."""
    reach = {}
    for start in edges:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = edges[waiting.pop()] - seen
            seen |= new
            waiting.extend(new)
        reach[start] = seen
    groups = []
    left = set(edges)
    while left:
        one = min(left)
        group = {one} | {other for other in reach[one] if one in reach[other]}
        groups.append(group)
        left -= group
    return groups


def private_imports(all_of_them: list[Module]) -> dict[str, int]:
    """Return, by importing module and name, the private names that are taken from other folders."""
    homes = {module.name: module.folder for module in all_of_them}
    found: collections.Counter[str] = collections.Counter()
    for module in all_of_them:
        taken = {}
        for one in imports(module):
            if not one.module.startswith("tandem"):
                continue
            home = homes.get(one.wanted, homes.get(one.module, one.module))
            parts = one.wanted.split(".")
            if home != module.folder and any(_is_private(part) for part in parts):
                found[f"{module.name} {one.wanted}"] += 1
            if one.wanted in homes and home != module.folder:
                taken[parts[-1]] = one.wanted
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and _is_private(node.attr):
                where = taken.get(node.value.id)
                if where is not None:
                    found[f"{module.name} {where}.{node.attr}"] += 1
    return dict(found)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def tests(root: Path) -> Found:
    """Return what is wrong with the places and imports of tests."""
    folders = {
        str(path.parent.relative_to(root / top / "tandem"))
        for top in SOURCE_ROOTS
        for path in (root / top / "tandem").rglob("*.py")
    }
    tried = sorted((root / "tests").rglob("*.py"))
    imported: collections.Counter[str] = collections.Counter()
    clocks: collections.Counter[str] = collections.Counter()
    for path in tried:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if _sets_a_clock(node):
                clocks[path.name] += 1
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                if name.rpartition(".")[2].startswith(("test_", "conftest")):
                    imported[f"{path.name} {name}"] += 1
    units = [path for path in tried if path.name.startswith("test_") and path.is_relative_to(root / "tests" / "unit")]
    places = [str(path.parent.relative_to(root / "tests" / "unit")) for path in units]
    astray = {
        str(path.relative_to(root)): 1
        for path, place in zip(units, places, strict=True)
        if place not in folders | {"judges", "repository"}
    }
    named = collections.Counter(path.name for path in tried if path.name.startswith("test_"))
    sizes = collections.Counter(str(path.parent.relative_to(root)) for path in tried if path.name.startswith("test_"))
    crowded = {name: count for name, count in named.items() if count > 1} | {
        folder: count for folder, count in sizes.items() if count > TEST_FILES
    }
    return {
        "test_imports": dict(imported),
        "test_folders": astray,
        "test_clocks": dict(clocks),
        "test_files": crowded,
    }


def _sets_a_clock(node: ast.AST) -> bool:
    """Say whether a call sets an attribute of the module `time`, under whatever name that is reached."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr"):
        return False
    match node.args:
        case [ast.Constant(value=str(name)), *_]:
            subject = name.rpartition(".")[0]
        case [name, *_]:
            subject = ast.unparse(name)
        case _:
            return False
    return subject.rpartition(".")[2] == "time"


def look(root: Path) -> Found:
    """Return all that is over a limit."""
    product = modules(root)
    return {
        "modules": folder_sizes(product),
        "lines": long_modules(product),
        "parameters": wide_functions(product),
        "class_names": shared_class_names(product),
        "circles": circles(product),
        "private": private_imports(product),
    } | tests(root)


def differences(found: Found, excepted: Found) -> list[str]:
    """Return what is over a limit without an exception, and the exceptions that are larger than needed."""
    said = []
    for rule, text in RULES.items():
        there, allowed = found.get(rule, {}), excepted.get(rule, {})
        for subject, size in sorted(there.items()):
            if size > _allowed(rule, subject, allowed):
                said.append(f"{subject} ({size}): {text}")
        for subject, size in sorted(allowed.items()):
            if there.get(subject, 0) < size and not _is_in_a_smaller_circle(rule, subject, there):
                said.append(
                    f'{subject}: the exception from "{text}" is larger than needed; run scripts/structure.py --shrink'
                )
    return said


def _allowed(rule: str, subject: str, allowed: Mapping[str, int]) -> int:
    """Return how bad a subject may be: a circle may be part of an excepted one."""
    if rule == "circles":
        folders = set(subject.split())
        return max((size for other, size in allowed.items() if folders <= set(other.split())), default=0)
    return allowed.get(subject, 0)


def _is_in_a_smaller_circle(rule: str, subject: str, there: Mapping[str, int]) -> bool:
    return rule == "circles" and subject in there


def shrunk(found: Found, excepted: Found) -> Found:
    """Return the exceptions that are still needed, none of them larger than before."""
    kept: Found = {}
    for rule in RULES:
        there, allowed = found.get(rule, {}), excepted.get(rule, {})
        kept[rule] = {
            subject: min(size, most)
            for subject, size in sorted(there.items())
            if (most := _allowed(rule, subject, allowed))
        }
    return kept


def written(excepted: Found) -> str:
    """Return the list as it is kept."""
    parts = [
        "# What is over a limit of structure.py, and by how much. This list can only shrink: structure.py --shrink\n"
    ]
    for rule, text in RULES.items():
        if excepted.get(rule):
            lines = "".join(f'"{subject}" = {size}\n' for subject, size in sorted(excepted[rule].items()))
            parts.append(f"\n[{rule}]  # {text}\n{lines}")
    return "".join(parts)


def main(arguments: list[str]) -> int:
    """Look, compare, and say what is wrong."""
    excepted: Found = tomllib.loads(LIST.read_text("utf-8"))
    found = look(ROOT)
    if arguments == ["--shrink"]:
        excepted = shrunk(found, excepted)
        LIST.write_text(written(excepted), "utf-8")
    said = differences(found, excepted)
    sys.stderr.write("".join(f"error: {line}\n" for line in said))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
