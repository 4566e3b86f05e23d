"""The shape of the code: who imports whom, how long things are, what files may say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "amos"
FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

FILE_LINES = 400
FUNCTION_LINES = 60  # CONTRIBUTING.md asks for 50; beyond 60 nobody may go

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
    "measure": _TO_RUNTIME | {"perfmodel"},
    "explore": _TO_RECORDS | {"perfmodel", "measure"},
    "selfcheck": _TO_RUNTIME | {"measure"},
    "explorer": _TO_RECORDS | {"operators", "perfmodel", "explore"},
    "export": _TO_RUNTIME | {"measure", "operators"},
}
# The paper's tables draw on every room; only the command line draws on them.
ARROWS["machines"] = set(ARROWS)
ARROWS["reproduce"] = set(ARROWS)
# Above all rooms: these may import any of them.
OPEN = {"_predict", "cli", "viz", "testing", "__init__", "__main__"}
# Below all rooms: any of them may import these.
SHARED = {"errors", "_callable", "_closing", "_display", "_progress"}
TVM_ROOMS = {"codegen", "runtime"}
TVM_FILES = {"amos/ir/te.py"}


def _room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0].removesuffix(".py")


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file names in an import, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_follow_the_arrows(path: Path) -> None:
    room = _room(path)
    if room in OPEN:
        return
    allowed = ARROWS.get(room, set()) | SHARED | {room}
    if room in TVM_ROOMS or _name(path) in TVM_FILES:
        allowed = allowed | {"_toolchain"}
    wrong = [
        f"{_name(path)}:{line}: {module}"
        for line, module in _imports(path)
        if module == "amos" or module.startswith("amos.")
        if module.partition(".")[2].partition(".")[0] not in allowed | {""}
    ]
    assert not wrong


def test_pictures_have_one_door() -> None:
    """Rooms do not know how they are drawn: only the hook that all share names the room."""
    doors = [path for path in FILES if "amos.viz" in path.read_text(encoding="utf-8")]
    assert {_room(path) for path in doors} <= {"_display"} | OPEN


def test_arrows_point_one_way() -> None:
    placed: set[str] = set()
    while rest := ARROWS.keys() - placed:
        free = {room for room in rest if ARROWS[room] <= placed}
        assert free, f"a circle among {sorted(rest)}"
        placed |= free


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_tvm_has_one_door(path: Path) -> None:
    found = [module for _, module in _imports(path) if module.split(".")[0] in {"tvm", "tvm_ffi"}]
    assert not found or _room(path) in TVM_ROOMS or _name(path) in TVM_FILES


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_tvm_is_imported_only_when_used(path: Path) -> None:
    """At the top of a module TVM may stand under TYPE_CHECKING only."""
    top = ast.parse(path.read_text(encoding="utf-8")).body
    names = [alias.name for node in top if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in top if isinstance(node, ast.ImportFrom)]
    assert not [name for name in names if name.split(".")[0] in {"tvm", "tvm_ffi"}]


@pytest.mark.parametrize("path", [p for p in FILES if p.name == "__init__.py"], ids=_name)
def test_packages_list_their_public_names(path: Path) -> None:
    names = {
        target.id
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert "__all__" in names


@pytest.mark.parametrize("path", FILES + TESTS, ids=_name)
def test_no_star_imports(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [node.lineno for node in nodes for alias in node.names if alias.name == "*"]


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_sizes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < FILE_LINES
    long = [
        f"{_name(path)}:{node.lineno}: {node.name} has {lines} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := _code_lines(node)) > FUNCTION_LINES
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
    inside = [path for folder in folders for path in folder.rglob("*")]
    top = [path for path in ROOT.iterdir() if path.suffix in kinds]
    named = [ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / ".gitignore"]
    found = {path for path in inside if path.suffix in kinds} | set(top) | set(named)
    return sorted(path for path in found if path.is_file() and path != Path(__file__).resolve())


@pytest.mark.parametrize("path", _texts(), ids=_name)
def test_files_name_no_machine(path: Path) -> None:
    """No path of somebody's machine, no address of a package index."""
    text = path.read_text(encoding="utf-8")
    paths = re.findall(r"(?<![\w.<])/(?:home|root|opt|work|mnt|Users)/[\w.]+", text)
    indexes = re.findall(r"(?:https?|file):/+\S*(?:simple|pypi)\S*|--(?:extra-)?index-url", text)
    assert not paths + indexes


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
