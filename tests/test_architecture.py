"""The shape of the code: who imports whom, how long things are, what files may say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "amos"
MAP = ROOT / "ARCHITECTURE.md"
FILES = sorted(PACKAGE.rglob("*.py"))

FILE_LINES = 400
FUNCTION_LINES = 50

# Room -> rooms it may import. ARCHITECTURE.md prints the same table.
_TO_PLAN = {"ir", "intrinsics", "machine", "validate", "mapping", "plan"}
_TO_RECORDS = _TO_PLAN | {"schedule", "records"}
_TO_RUNTIME = _TO_RECORDS | {"codegen", "runtime"}
ARROWS: dict[str, set[str]] = {
    "ir": set(),
    "operators": {"ir"},
    "intrinsics": {"ir"},
    "machine": {"ir", "intrinsics"},
    "validate": {"ir", "intrinsics"},
    "mapping": {"ir", "intrinsics", "validate"},
    "plan": _TO_PLAN - {"plan"},
    "perfmodel": _TO_PLAN,
    "schedule": _TO_PLAN,
    "records": _TO_PLAN | {"schedule"},
    "codegen": _TO_PLAN | {"schedule"},
    "runtime": _TO_PLAN | {"schedule", "codegen"},
    "measure": _TO_RUNTIME,
    "explore": _TO_RECORDS | {"perfmodel", "measure"},
    "selfcheck": _TO_RUNTIME | {"measure"},
    "explorer": _TO_RECORDS | {"operators", "perfmodel", "explore"},
}
# Finds a machine by its name, and measures this one.
ARROWS["machines"] = ARROWS["measure"] | {"measure"}
ARROWS["explore"] |= {"machines"}
# The paper's tables draw on every room; only the command line draws on them.
ARROWS["reproduce"] = set(ARROWS)
ARROWS["chains"] = _TO_RUNTIME | {"perfmodel", "measure", "explore", "machines"}
ARROWS["network"] = ARROWS["chains"] | {"chains", "operators"}
ARROWS["export"] = ARROWS["chains"] | {"chains", "operators"}
# Extensions, behind the door of targets: they import the core, which never imports them.
EXTENSIONS = {"cuda", "streams", "opencl"}
for extension in EXTENSIONS:
    ARROWS[extension] = _TO_RUNTIME | {"perfmodel", "measure", "operators", "export", "selfcheck"}
ARROWS["opencl"] |= {"chains"}
ARROWS["streams"] |= {"explore", "chains", "machines", "network"}
ARROWS["reproduce"] |= EXTENSIONS | {"chains"}
# Above all rooms: these may import any of them.
OPEN = {"_kernels", "_predict", "cli", "targets", "viz", "testing", "__init__", "__main__"}
# States what targets do in terms of all rooms, whose types it names for the checker alone.
CONTRACT = "amos/plan/target.py"
# Below all rooms: any of them may import these.
SHARED = {"errors", "_callable", "_closing", "_display", "_processes", "_progress", "_tables"}
TVM_ROOMS = {"codegen", "runtime", "chains", "network"}
TVM_FILES = {"amos/ir/te.py"}


def _room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0].removesuffix(".py")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imports(path: Path) -> list[tuple[int, str]]:
    """Every module that a file names in an import, wherever the import stands."""
    return list(_named(path))


def _named(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield node.lineno, module
            if module == "amos":
                for alias in node.names:
                    yield node.lineno, f"amos.{alias.name}"


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_rooms_are_known() -> None:
    rooms = {_room(path) for path in FILES}
    assert rooms <= ARROWS.keys() | OPEN | SHARED | {"_toolchain"}


def test_the_map_shows_the_rooms() -> None:
    """Every folder has a line in ARCHITECTURE.md, and what the line names is in it."""
    rows = re.findall(r"^\| `(\w+)/` \| (.+?) \|", MAP.read_text(encoding="utf-8"), re.M)
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert sorted(room for room, _ in rows) == sorted(folders)
    for room, holds in rows:
        for name in re.findall(r"`([\w/.]+)`", holds):
            place = PACKAGE / room / name
            assert place.exists() or place.with_suffix(".py").exists(), f"{room}: {name}"


def _type_lines(path: Path) -> set[int]:
    """Lines under ``if TYPE_CHECKING`` at the top of a module."""
    tests = (node for node in _tree(path).body if isinstance(node, ast.If))
    checks = [x for x in tests if isinstance(x.test, ast.Name) and x.test.id == "TYPE_CHECKING"]
    return {inner.lineno for node in checks for inner in node.body}


def _forbidden(path: Path) -> Iterator[str]:
    """The imports of a file that the arrows do not allow."""
    room = _room(path)
    allowed = ARROWS.get(room, set()) | SHARED | {room, ""}
    if room in TVM_ROOMS or _name(path) in TVM_FILES:
        allowed = allowed | {"_toolchain"}
    typed = _type_lines(path) if _name(path) == CONTRACT else set()
    for line, module in _imports(path):
        package, _, inner = module.partition(".")
        if line in typed:
            continue
        if package == "amos" and inner.partition(".")[0] not in allowed:
            yield f"{_name(path)}:{line}: {module}"


def test_imports_follow_the_arrows() -> None:
    closed = [path for path in FILES if _room(path) not in OPEN]
    assert not [line for path in closed for line in _forbidden(path)]


def test_pictures_have_one_door() -> None:
    """Rooms do not know how they are drawn: only the hook that all share names the room."""
    doors = [path for path in FILES if "amos.viz" in path.read_text(encoding="utf-8")]
    assert {_room(path) for path in doors} <= {"_display"} | OPEN


def test_arrows_point_one_way() -> None:
    placed: set[str] = set()
    while remaining := ARROWS.keys() - placed:
        free = {room for room in remaining if ARROWS[room] <= placed}
        assert free, f"a circle among {sorted(remaining)}"
        placed |= free


def _is_tvm(module: str) -> bool:
    return module.split(".")[0] in {"tvm", "tvm_ffi"}


def test_tvm_has_one_door() -> None:
    untouched = [p for p in FILES if _room(p) not in TVM_ROOMS and _name(p) not in TVM_FILES]
    assert not [
        _name(path) for path in untouched if any(_is_tvm(name) for _, name in _imports(path))
    ]


def test_tvm_is_imported_only_when_used() -> None:
    """At the top of a module TVM may stand under TYPE_CHECKING only."""
    tops = [(path, node) for path in FILES for node in _tree(path).body]
    wrong = [
        f"{_name(path)}:{node.lineno}"
        for path, node in tops
        if (isinstance(node, ast.Import) and any(_is_tvm(alias.name) for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and _is_tvm(node.module or ""))
    ]
    assert not wrong


def _assigned(path: Path) -> set[str]:
    """The names that a module assigns at its top."""
    return {
        target.id
        for node in _tree(path).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def test_packages_list_their_public_names_and_modules_do_not() -> None:
    """In a plain module a name without an underscore is public."""
    listing = {path for path in FILES if "__all__" in _assigned(path)}
    assert listing == {path for path in FILES if path.name == "__init__.py"}


def test_sizes_of_files() -> None:
    lines = {_name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not {name: count for name, count in lines.items() if count >= FILE_LINES}


def test_sizes_of_functions() -> None:
    long = [
        f"{_name(path)}:{node.lineno}: {node.name} has {lines} lines"
        for path in FILES
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := _code_lines(node)) >= FUNCTION_LINES
    ]
    assert not long


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def _texts() -> list[Path]:
    kinds = {".py", ".md", ".toml", ".lock", ".yaml", ".txt", ".ipynb", ".json"}
    folders = [ROOT / name for name in ("amos", "tests", "benchmarks", "notebooks", ".ci")]
    paths = [path for folder in folders for path in folder.rglob("*")]
    top = [path for path in ROOT.iterdir() if path.suffix in kinds]
    named = [ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / ".gitignore"]
    files = {path for path in paths if path.suffix in kinds} | set(top) | set(named)
    return sorted(path for path in files if path.is_file() and path != Path(__file__).resolve())


def test_files_name_no_machine() -> None:
    """No path of somebody's machine, no address of a package index."""
    machine = re.compile(r"(?<![\w.<])/(?:home|root|opt|work|mnt|Users)/[\w.]+")
    index = re.compile(r"(?:https?|file):/+\S*(?:simple|pypi)\S*|--(?:extra-)?index-url")
    texts = {_name(path): path.read_text(encoding="utf-8") for path in _texts()}
    wrong = {name: machine.findall(text) + index.findall(text) for name, text in texts.items()}
    assert not {name: hits for name, hits in wrong.items() if hits}


def test_lock_holds_versions_only() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pinned = re.compile(r"[a-z0-9-]+==[\w.]+( ;( (and )?[a-z_]+ [!=<>]=? '[\w.]+')+)?")
    assert [line for line in lines if not line.startswith("#") and not pinned.fullmatch(line)] == []


@pytest.mark.parametrize("name", ["intrinsics", "mapping", "validate", "perfmodel"])
def test_rooms_stand_at_the_top(name: str) -> None:
    link = ROOT / name
    if not link.is_symlink():
        pytest.skip("not a checkout of the repository")
    assert str(link.readlink()) == f"amos/{name}"
    assert link.is_dir()
