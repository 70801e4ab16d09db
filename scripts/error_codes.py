"""Finds the places in the sources that make errors, and writes their wording to docs/errors.md, the one snapshot of it.

`python scripts/error_codes.py` rewrites the page. A code that no place makes any longer stays there, in the list of
retired codes, and its number is not given again. Reads source files only, as syntax trees.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[1]
CODE: Final = re.compile(r"TDM-[A-Z][0-9]{3}")
PAGE: Final = ROOT / "docs" / "errors.md"

#: letter -> what its codes are about
AREAS: Final = {
    "A": "records, chain, documents, selection",
    "B": "reading, transcoding and writing a backup",
    "C": "configuration, command line, roles",
    "D": "demo and sandbox",
    "H": "handover and checkpoints on request",
    "I": "instance, coordination, status",
    "K": "Kafka",
    "N": "encryption and keys",
    "P": "Spark sessions, reading stored records, catch-up",
    "R": "restore, rewind and export",
    "S": "store",
    "T": "retention, sweep, compaction, erasure",
    "V": "verify, heads that a machine remembers",
}

_LETTERS: Final = {
    "avro": "A",
    "sink/tandem/sink": "B",
    "sink/tandem/sink/kafka": "K",
    "sink/tandem/sink/store": "S",
    "sink/tandem/sink/store/encrypted_objects.py": "N",
    "sink/tandem/sink/aws": "S",
    "sink/tandem/sink/encryption": "N",
    "spark_jobs": "P",
    "spark_jobs/tandem/spark_jobs/restore": "R",
    "spark_jobs/tandem/spark_jobs/rewind": "R",
    "spark_jobs/tandem/spark_jobs/verify": "V",
    "spark_jobs/tandem/spark_jobs/retention": "T",
    "spark_jobs/tandem/spark_jobs/compaction": "T",
    "spark_jobs/tandem/spark_jobs/erasure": "T",
    "controller": "I",
    "controller/tandem/controller/cli": "C",
    "controller/tandem/controller/cli/handover": "H",
    "controller/tandem/controller/cli/restore": "R",
    "controller/tandem/controller/cli/keys": "N",
    "controller/tandem/controller/cli/maintain": "T",
    "controller/tandem/controller/cli/maintain/verify.py": "V",
    "controller/tandem/controller/cli/maintain/verify_files.py": "V",
    "controller/tandem/controller/cli/maintain/catch_up.py": "P",
    "controller/tandem/controller/cli/run/demo.py": "D",
    "controller/tandem/controller/cli/run/sandbox.py": "D",
    "controller/tandem/controller/cli/run/run.py": "I",
    "controller/tandem/controller/config": "C",
    "controller/tandem/controller/config/derived_settings.py": "I",
    "controller/tandem/controller/local_state": "V",
    "controller/tandem/controller/process/whole_file.py": "C",
    "controller/tandem/controller/roles": "C",
    "controller/tandem/controller/sandbox": "D",
    "controller/tandem/controller/demo": "D",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Construction:
    """A call with a code, or one that makes an error and lacks it. `path` is relative to the repository.

    `exit_code` is None if the class is chosen at run time. In the texts, `{x}` stands for a value and `[a | b]` for one
    of several texts.
    """

    path: str
    line: int
    code: str | None
    passed_on: bool
    event: str
    remedy: str
    exit_code: int | None

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.path}:{self.line}"


def area_of(path: str) -> str:
    """Return the letter of the codes of a source file: that of the longest path in the table that holds it."""
    return _LETTERS[max((place for place in _LETTERS if f"{path}/".startswith(f"{place}/")), key=len)]


def retired(page: str) -> set[str]:
    """Return the codes in the list of retired ones of docs/errors.md."""
    return set(CODE.findall(page.partition(_RETIRED)[2]))


def constructions(root: Path = ROOT) -> Iterator[Construction]:
    """Yield, in the order of files, each call that makes an error or has a keyword `code` with a literal code."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in _sources(root)}
    errors = _exit_codes(trees.values())
    own = _with_own_code(trees.values(), set(errors))
    constants = {path: _constants(tree) for path, tree in trees.items()}
    shared = _unambiguous(constants.values())
    for path, tree in trees.items():
        for scope, call in _calls(tree):
            given = next((keyword.value for keyword in call.keywords if keyword.arg == "code"), None)
            code = given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None
            name = _name(call.func)
            if name not in errors.keys() - own and not (code is not None and CODE.match(code)):
                continue
            text = _Text({**shared, **constants[path]}, _locals(scope))
            remedy = next((keyword.value for keyword in call.keywords if keyword.arg == "remedy"), None)
            yield Construction(
                path=str(path.relative_to(root)),
                line=call.lineno,
                code=code,
                passed_on=code is None and given is not None,
                event=next((shown for one in call.args if " " in (shown := text.of(one))), text.of(_last(call))),
                remedy="" if remedy is None else text.of(remedy),
                exit_code=errors.get(name),
            )


def page(found: Iterable[Construction], before: str = "") -> str:
    """Return docs/errors.md. Codes of the page `before` that are made no longer are in its list of retired ones."""
    by_code = {one.code: one for one in found if one.code is not None}
    lines = [_HEAD]
    for letter, about in AREAS.items():
        lines += [f"## {letter}: {about}", "", "| code | event | what to do | exit |", "|---|---|---|---|"]
        lines += [_row(one) for code, one in sorted(by_code.items()) if code[4] == letter]
        lines.append("")
    gone = set(CODE.findall(before)) - by_code.keys()
    lines += [_RETIRED, "", ", ".join(sorted(gone)) or "None.", ""]
    return "\n".join(lines)


_RETIRED: Final = "## Retired codes"
_HEAD: Final = """\
# Errors

The first line of an error ends with its code: `error: … [TDM-K012]`. A log line about an error has the code in its
field `code`. Codes are stable: scripts, alerts and tests may rely on them, while wording may change between releases.
A code belongs to one place in the sources, and a retired code is not used again. An error that only adds a place to
another one (an object's name, a line of a file) keeps its code.

This page is written from the sources by `python scripts/error_codes.py`. `{x}` stands for a value, `[a | b]` for one
of several texts. The last column is the exit code of a command that ends with the error; it is empty where the
situation decides, or where the error is always handled. Findings of `tandem status`, `tandem check` and the status
page have names of their own ([operations.md](operations.md)).
"""


def _row(one: Construction) -> str:
    cells = (one.code or "", one.event, one.remedy, "" if one.exit_code is None else str(one.exit_code))
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").replace("<", "&lt;").split()) for cell in cells) + " |"


class _Text:
    """Renders the expression of a message as text."""

    def __init__(self, constants: Mapping[str, ast.expr], local: Mapping[str, list[ast.expr]]) -> None:
        self._constants = constants
        self._local = local

    def of(self, node: ast.expr, depth: int = 0) -> str:
        """Return the text with `{…}` for values that are known at run time only."""
        if depth > _DEEPEST:
            return "{…}"
        match node:
            case ast.Constant(value=value):
                return "" if value is None else str(value)
            case ast.JoinedStr(values=values):
                return "".join(self.of(value, depth + 1) for value in values)
            case ast.FormattedValue(value=value):
                return self.of(value, depth + 1)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                return self.of(left, depth + 1) + self.of(right, depth + 1)
            case ast.IfExp(body=body, orelse=other):
                return self._choice([body, other], depth)
            case ast.Name(id=name) if name in self._constants:
                return self.of(self._constants[name], depth + 1)
            case ast.Name(id=name) if self._local.get(name):
                return self._choice(self._local[name], depth)
            case ast.Name() | ast.Attribute():
                return "{" + ast.unparse(node).removeprefix("self.").lstrip("_") + "}"
            case _:
                return "{…}"

    def _choice(self, nodes: Iterable[ast.expr], depth: int) -> str:
        texts = dict.fromkeys(self.of(node, depth + 1) for node in nodes)
        return next(iter(texts)) if len(texts) == 1 else "[" + " | ".join(texts) + "]"


_DEEPEST: Final = 12


def _calls(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Call]]:
    """Yield each call with the innermost function that holds it."""
    todo: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while todo:
        scope, node = todo.pop()
        if isinstance(node, ast.Call):
            yield scope, node
        inner = node if isinstance(node, ast.FunctionDef) else scope
        todo += [(inner, child) for child in reversed(list(ast.iter_child_nodes(node)))]


def _last(call: ast.Call) -> ast.expr:
    return call.args[-1] if call.args else ast.Constant(value="")


def _locals(scope: ast.AST) -> dict[str, list[ast.expr]]:
    """Return the texts that a function assigns to its variables; a variable with another value is left out."""
    if not isinstance(scope, ast.FunctionDef):
        return {}
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(scope):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_text(value):
                found.setdefault(name, []).append(value)
    stores = [node.id for node in ast.walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return {name: values for name, values in found.items() if stores.count(name) == len(values)}


def _is_text(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.IfExp(body=body, orelse=other):
            return _is_text(body) and _is_text(other)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _is_text(left) or _is_text(right)
        case _:
            return False


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the module's constants that are texts."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if _is_text(value):
                found[name] = value
    return found


def _unambiguous(modules: Iterable[Mapping[str, ast.expr]]) -> dict[str, ast.expr]:
    """Return the constants that have one text in all modules, for modules that import them."""
    found: dict[str, dict[str, ast.expr]] = {}
    for constants in modules:
        for name, value in constants.items():
            found.setdefault(name, {})[ast.dump(value)] = value
    return {name: next(iter(values.values())) for name, values in found.items() if len(values) == 1}


def _sources(root: Path) -> Iterator[Path]:
    for top in ("avro", "sink", "spark_jobs", "controller"):
        yield from sorted((root / top / "tandem").rglob("*.py"))


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _classes(trees: Iterable[ast.Module]) -> Iterator[ast.ClassDef]:
    for tree in trees:
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _exit_codes(trees: Iterable[ast.Module]) -> dict[str, int]:
    """Return TandemError and its subclasses, with their exit codes: class names are unique in the project."""
    classes = {node.name: node for node in _classes(trees)}
    numbers = {
        node.targets[0].id: node.value.value
        for node in classes["ExitCode"].body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }

    def code_of(name: str) -> int | None:
        if name not in classes:
            return None
        for node in classes[name].body:
            match node:
                case ast.Assign(targets=[ast.Name(id="exit_code")], value=ast.Attribute(attr=code)):
                    return int(str(numbers[code]))
                case ast.AnnAssign(target=ast.Name(id="exit_code"), value=ast.Attribute(attr=code)):
                    return int(str(numbers[code]))
        return next((above for base in classes[name].bases if (above := code_of(_name(base))) is not None), None)

    return {name: code for name in classes if (code := code_of(name)) is not None}


def _with_own_code(trees: Iterable[ast.Module], errors: set[str]) -> set[str]:
    """Return the errors whose constructor takes no code, but gives one to its base class."""
    return {
        node.name
        for node in _classes(trees)
        if node.name in errors
        for part in node.body
        if isinstance(part, ast.FunctionDef)
        and part.name == "__init__"
        and "code" not in {argument.arg for argument in part.args.kwonlyargs}
    }


if __name__ == "__main__":
    PAGE.write_text(page(constructions(), PAGE.read_text("utf-8") if PAGE.exists() else ""), "utf-8")
