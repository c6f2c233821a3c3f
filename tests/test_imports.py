"""Rooms import from rooms above them only, and each foreign library has a single door."""

import ast
import functools
import subprocess
import sys

import pytest
from places import ROOT, TESTS

PACKAGE = ROOT / "interp"
ROOMS = (
    *("errors", "heads", "files", "memory", "printing", "text", "command"),
    *("attention", "kinds", "patterns", "models", "weights", "scan", "effects", "circuits"),
    *("trust", "sweeps", "show", "course", "commands", "__main__"),
)
"""From the ground up: each imports only from those before it."""

MODULES = sorted(
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py")
)
DOORS = {
    "tokenizers": "models",
    "transformers": "models",
    "transformer_lens": "models",
    "gguf": "models",
    "matplotlib": "show.figures",
    "PIL": "show.pages",
    "ray": "sweeps.cluster",
    "starlette": "show.live",
    "uvicorn": "show.live",
    "typer": ("command", "commands", "__main__"),
}
"""The room that alone may import a library."""

TENSORS_ONLY = ("attention", "kinds")
"""Rooms that never see a model, a file or a table."""


@functools.cache
def imported(module: str, *, types: bool = True) -> set[str]:
    """Every module that a module of the package names in an import, anywhere in it.

    Without `types`, imports that only the type checker sees are left out.
    """
    source = (PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    names, tree = set(), ast.parse(source)
    if not types:
        tree.body = [n for n in tree.body if not ast.unparse(n).startswith("if TYPE_CHECKING")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def foreign(module: str) -> set[str]:
    """Top-level packages that it imports, besides the standard library and our own."""
    return (
        {n.split(".")[0] for n in imported(module, types=False)}
        - sys.stdlib_module_names
        - {"interp"}
    )


def room(module: str) -> str:
    return module.partition(".")[0]


def test_rooms_import_from_rooms_above_only():
    backwards = {
        (module, name)
        for module in MODULES
        if module != "__init__"
        for name in imported(module)
        if name.startswith("interp.")
        and (part := name.split(".")[1]) in ROOMS
        and ROOMS.index(part) > ROOMS.index(room(module))
    }
    assert backwards == set()


def test_every_room_is_listed_and_says_what_it_is_for():
    assert {room(module) for module in MODULES} <= {*ROOMS, "__init__"}
    for path in PACKAGE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_no_two_files_import_each_other_in_a_circle():
    known = {f"interp.{m.removesuffix('.__init__')}": m for m in MODULES if m != "__init__"}
    uses = {
        module: {
            known[base]
            for name in imported(module)
            for base in (name, name.rpartition(".")[0])
            if base in known and not known[base].endswith("__init__")
        }
        for module in MODULES
    }
    while leaves := {module for module, others in uses.items() if not others & uses.keys()}:
        uses = {module: others for module, others in uses.items() if module not in leaves}
    assert uses == {}


@pytest.mark.fault("B71")
@pytest.mark.parametrize("library", DOORS)
def test_each_foreign_library_has_one_door(library):
    users = {module for module in MODULES if library in foreign(module)}
    assert users
    doors = DOORS[library] if isinstance(DOORS[library], tuple) else (DOORS[library],)
    assert {m for m in users if not any(f"{m}.".startswith(f"{d}.") for d in doors)} == set()


@pytest.mark.parametrize("module", [m for m in MODULES if room(m) in TENSORS_ONLY])
def test_attention_and_kinds_import_tensors_only(module):
    assert foreign(module) <= {"torch", "einops", "jaxtyping", "pydantic"}


STEPS = """
import sys
def step():
    print(*{name.split('.')[0] for name in sys.modules})
import interp
dir(interp)
step()
import torch
interp.classify_heads(torch.ones(1, 1, 1), [5])
step()
import transformers
transformers.logging.set_verbosity_info()
from interp.models.stream import streams
sys.path.insert(0, sys.argv[2])
from libraries import settings_of_libraries
before = settings_of_libraries()
model = interp.load_model(sys.argv[1])
assert streams(model)
step()
model.bridge
step()
assert settings_of_libraries() == before
assert before[0][0] == transformers.logging.INFO
"""
HEAVY = {"transformers", "transformer_lens", "matplotlib", "pandas", "circuitsvis"}


@pytest.mark.fault("B71", "C21")
def test_a_fresh_interpreter_imports_only_what_each_step_needs_and_keeps_settings(folder):
    run = [sys.executable, "-c", STEPS, str(folder), str(TESTS)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    package, classified, streamed, bridged = map(set, map(str.split, done.stdout.splitlines()))
    assert not package & {"torch", *HEAVY}
    assert not classified & HEAVY
    assert "transformers" in streamed
    assert "transformer_lens" not in streamed
    assert "transformer_lens" in bridged


def test_every_public_name_is_there():
    import interp

    names = [name for name in dir(interp) if name[0] != "_"]
    assert all(getattr(interp, n).__name__.rpartition(".")[2] == n for n in names)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = interp.nothing
