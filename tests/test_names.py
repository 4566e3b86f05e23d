"""Names say what a thing is, and names and docstrings of functions what they do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(path for folder in ("amos", "tests") for path in (ROOT / folder).rglob("*.py"))

#: Words that are no name by themselves, with or without underscores around them.
FILLERS = re.compile(
    "_*(around|look|found|made|given|known|held|taken|kept|begun|left|rest|others|each|every|one"
    "|other|part|stretch|thing|way|worth|apart|inside|outside|behind|beside|together|wanted|said"
    "|told|asked)_*"
)
#: Participles, which are no names of functions by themselves; a property may have one.
PARTICIPLES = re.compile("_*([a-z]+ed|built|broken|chosen|drawn|frozen|hidden|shown|written)_*")
#: Verbs that end as participles do.
VERBS = {"embed", "exceed", "feed", "need", "breed", "proceed", "seed", "speed"}
#: First words of docstrings that say what something is, and not what a function does.
ARTICLES = {"The", "A", "An", "Whether", "What", "How", "Why", "Each", "Those", "Which", "Where"}
#: Fields whose names are keys of printed or exported JSON, by file.
JSON_KEYS = {
    "amos/streams/codegen/calls.py": {"apart"},  # an instruction in stream.json
    "amos/records/exchange.py": {"known"},  # what `amos records import --json` prints
}


def filler_names(source: str) -> Iterator[tuple[int, str]]:
    """Lines and names of definitions, arguments, variables and attributes that are fillers.

    ``each`` may be the variable of a comprehension.
    """
    tree = ast.parse(source)
    in_comprehensions = {
        id(name)
        for node in ast.walk(tree)
        if isinstance(node, ast.comprehension)
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name) and name.id == "each"
    }
    for node in ast.walk(tree):
        if id(node) in in_comprehensions:
            continue
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case ast.ClassDef(name=name) | ast.arg(arg=name) | ast.alias(asname=str(name)):
                pass
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case ast.MatchAs(name=str(name)) | ast.ExceptHandler(name=str(name)):
                pass
            case _:
                continue
        if FILLERS.fullmatch(name):
            yield getattr(node, "lineno", 0), name


@pytest.mark.parametrize(
    "source",
    [
        "def kept(): ...",
        "lambda each: 1",
        "for _one in x: ...",
        "self.left = 1",
        "import a as held",
    ],
)
def test_fillers_are_recognised(source: str) -> None:
    assert len([*filler_names(source)]) == 1


def test_comprehensions_may_say_each() -> None:
    assert not [*filler_names("[each for each in kept_rows]")]


def test_names_say_what_things_are() -> None:
    problems = []
    for path in FILES:
        inner = path.relative_to(ROOT).as_posix()
        for line, name in filler_names(path.read_text(encoding="utf-8")):
            if name not in JSON_KEYS.get(inner, ()):
                problems.append(f"{inner}:{line}: {name}")
    assert not problems, "\n".join(["rename, as CONTRIBUTING.md says:", *problems])


def functions_of(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods of a module, without properties and tests."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
            continue
        if not node.name.startswith("test_"):
            yield node


def nouns_of_functions(source: str) -> Iterator[tuple[int, str]]:
    """Lines, and names or docstrings, of functions that are not called by a verb."""
    for node in functions_of(source):
        if PARTICIPLES.fullmatch(node.name) and node.name.strip("_") not in VERBS:
            yield node.lineno, node.name
        first, *_ = (ast.get_docstring(node) or "").split() or [""]
        if first in ARTICLES:
            yield node.lineno, f'{node.name}: """{first} ...'


@pytest.mark.parametrize(
    "source",
    [
        "def _moved(): ...",
        "class A:\n    def widened(self): ...",
        'def move():\n    """The moved tensor."""',
        'def is_moved():\n    """Whether it is moved."""',
    ],
)
def test_nouns_of_functions_are_recognised(source: str) -> None:
    assert len([*nouns_of_functions(source)]) == 1


def test_functions_are_called_by_verbs() -> None:
    problems = [
        f"{path.relative_to(ROOT).as_posix()}:{line}: {name}"
        for path in FILES
        if path.is_relative_to(ROOT / "amos")
        for line, name in nouns_of_functions(path.read_text(encoding="utf-8"))
    ]
    assert not problems, "\n".join(["begin with a verb, as CONTRIBUTING.md says:", *problems])


@pytest.mark.parametrize("inner", sorted(JSON_KEYS))
def test_keys_of_json_are_used(inner: str) -> None:
    text = (ROOT / inner).read_text(encoding="utf-8")
    assert {name for _, name in filler_names(text)} == JSON_KEYS[inner]
