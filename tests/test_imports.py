"""Who may import what, and that the light parts stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "interp"
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py")
)
PURE = {
    "accuracy",
    "alibi",
    "archives",
    "arrays",
    "attention",
    "circuits.absolute",
    "circuits.built",
    "circuits.codes",
    "circuits.rotary",
    "circuits.training",
    "composition",
    "contents",
    "costs",
    "definitions",
    "designed",
    "evidence",
    "finite",
    "generated",
    "heads",
    "labels",
    "mass",
    "memory",
    "multihead",
    "norms",
    "numbers",
    "operands",
    "pages.kinds",
    "pages.packing",
    "pages.visible",
    "patterns",
    "planted",
    "records",
    "scores",
    "shortcut",
    "sinks",
    "targets",
    "tiles",
    "tokens",
    "weights",
}
READERS = {"archives": {"numpy", "safetensors"}}
"""What reads files of arrays, and is light enough."""

DOORS = {
    "tokenizers": {"models"},
    "transformers": {"models"},
    "transformer_lens": {"models"},
    "matplotlib": {"plots"},
    "circuitsvis": {"pages.webpage"},
    "PIL": {"pages.sheet"},
    "typer": {"command"},
    "rich": {"command", "report"},
    "pandas": {
        "columns",
        "edges",
        "formats",
        "plots",
        "prompts",
        "published",
        "report",
        "sensitivity",
        "table",
    },
}


def imported(module: str) -> set[str]:
    """Every module that a module of the package names in an import, wherever it stands."""
    names = set()
    for node in ast.walk(
        ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    ):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def room(module: str) -> str:
    """The module itself, or the folder that it is in: `plots` for `plots.page`."""
    return module.partition(".")[0]


def foreign(module: str) -> set[str]:
    """Top-level packages that it imports, besides the standard library and our own."""
    return {n.split(".")[0] for n in imported(module)} - sys.stdlib_module_names - {"interp", ""}


@pytest.mark.parametrize("library", DOORS)
def test_each_foreign_library_has_one_door(library):
    users = {module for module in MODULES if library in foreign(module)}
    assert {module for module in users if not {module, room(module)} & DOORS[library]} == set()


@pytest.mark.parametrize("module", sorted(PURE))
def test_pure_rooms_import_tensors_and_each_other_alone(module):
    assert foreign(module) <= {"torch", "einops", "jaxtyping"} | READERS.get(module, set())
    own = {name.removeprefix("interp.") for name in imported(module) if "interp." in name}
    assert {
        name for name in own if not any(f"{name}.".startswith(f"{m}.") for m in PURE | {"errors"})
    } == set()


def loaded_after(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `code`."""
    code += "\nimport sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HEAVY = {"transformers", "transformer_lens", "matplotlib", "pandas", "circuitsvis"}


def test_importing_the_package_imports_nothing_heavy():
    assert not loaded_after("import interp; dir(interp)") & {"torch", *HEAVY}


def test_classifying_ones_own_patterns_never_imports_transformers():
    code = "import torch, interp; interp.classify_heads(torch.ones(1, 1, 1), [5])"
    assert not loaded_after(code) & HEAVY


def test_the_test_above_would_notice():
    assert {"transformers", "transformer_lens"} <= loaded_after("import interp; interp.load_model")


def test_every_public_name_is_there_and_the_list_is_sorted():
    import interp

    assert interp.__all__ == sorted(interp.__all__)
    assert all(getattr(interp, name).__name__ == name for name in interp.__all__)
    assert set(interp.__all__) <= set(dir(interp))
    assert {name for name in dir(interp) if not name.startswith("__")} == set(interp.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = interp.nothing
