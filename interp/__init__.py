"""What each attention head of a language model does.

Start with `load_model` and `scan_heads`, or, with attention patterns of your own,
`classify_heads`. Nothing is imported before it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interp.arrays import read_patterns
    from interp.circuits.build import build_circuit
    from interp.circuits.compare import compare_circuits
    from interp.definitions import scores_by_definition
    from interp.effects import verify
    from interp.errors import InputError
    from interp.folded import composition_scores
    from interp.heads import Head
    from interp.hooks import attention_patterns
    from interp.labels import HeadLabel, classify_heads
    from interp.models import Model, load_model
    from interp.pages.gallery import gallery
    from interp.pages.page import Gallery
    from interp.paths import path_effects
    from interp.patterns import AttentionPatterns
    from interp.prompts import PromptScores, score_prompts
    from interp.published import compare_with_published, published_heads
    from interp.scan import scan_heads
    from interp.scores import Thresholds
    from interp.table import HeadScan

__version__ = "0.1.0"

__all__ = [
    "AttentionPatterns",
    "Gallery",
    "Head",
    "HeadLabel",
    "HeadScan",
    "InputError",
    "Model",
    "PromptScores",
    "Thresholds",
    "attention_patterns",
    "build_circuit",
    "classify_heads",
    "compare_circuits",
    "compare_with_published",
    "composition_scores",
    "gallery",
    "load_model",
    "path_effects",
    "published_heads",
    "read_patterns",
    "scan_heads",
    "score_prompts",
    "scores_by_definition",
    "verify",
]

_HOME = {
    "AttentionPatterns": "patterns",
    "Gallery": "pages.page",
    "Head": "heads",
    "HeadLabel": "labels",
    "HeadScan": "table",
    "InputError": "errors",
    "Model": "models",
    "PromptScores": "prompts",
    "Thresholds": "scores",
    "attention_patterns": "hooks",
    "build_circuit": "circuits.build",
    "classify_heads": "labels",
    "compare_circuits": "circuits.compare",
    "compare_with_published": "published",
    "composition_scores": "folded",
    "gallery": "pages.gallery",
    "load_model": "models",
    "path_effects": "paths",
    "published_heads": "published",
    "read_patterns": "arrays",
    "scan_heads": "scan",
    "score_prompts": "prompts",
    "scores_by_definition": "definitions",
    "verify": "effects",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
