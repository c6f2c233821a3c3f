"""What each attention head of a language model does, with the evidence.

From a model to labels:

    load_model              a `Model` from a hub name, a folder, a .gguf file or a loaded model
    scan_heads              score and label every head: a `HeadScan`
    attention_patterns      the attention patterns of a model on one text
    score_prompts           score every head on your own prompts: `PromptScores`
    sweep                   scan many models and checkpoints, on one machine or several
    trajectories            when each kind of head forms, from a sweep over checkpoints

From attention patterns to labels, without a model:

    classify_heads          label heads from patterns of any source: a list of `HeadLabel`
    read_patterns           check patterns from any tool or file: `AttentionPatterns`
    kind                    your own kind of head, from a function that says where it looks
    scores_by_definition    head scores as published papers define them

What heads do to the output:

    tasks                   prompts with known answers, clean and corrupted: ioi, from_file, ...
    logit_difference        a metric: the logit of the right answer minus that of the wrong one
    patch                   a head's clean z, q, k, v or pattern in corrupted runs: `HeadEffects`
    attribute               the same from gradients, for all heads in a few passes: `HeadEffects`
    logit_attribution       an answer's logit as a sum over heads, source tokens and MLPs
    ablate                  heads or sets taken out, on any prompts and any metric: `HeadEffects`
    find_backups            which head does the work of an earlier one once that is gone
    verify                  remove the heads of each label; compare with random heads
    ablated                 the model without some heads, inside a `with` block
    why                     which earlier parts make a head look from one token to another: `Why`
    find_circuit            the edges that carry a task, and how faithful they are: a `Circuit`
    path_effects            replace earlier heads in the queries, keys or values of a head
    composition_scores      how strongly each head reads each earlier head, from the weights

Circuits, validation and pictures; figures for papers are in `interp.show.figures`:

    build_circuit           a small model with an induction circuit that is right by construction
    compare_circuits        the induction circuits of several models, measured the same way
    published_heads         heads that papers describe, with their sources
    compare_with_published  whether a scan agrees with those papers
    gallery                 all heads on one page for a browser or a notebook: a `Gallery`
    live                    a page that answers typed prompts, for this machine alone

Classes; `help(interp.scan_heads)` shows one name in full, `docs/architecture.md` the rooms:

    Model                   a language model, ready to run
    Head                    one head: accepted everywhere as L5H1, 5.1, (5, 1) or Head(5, 1)
    Kind                    a kind of head: name, rule, threshold, null
    HeadScan                the table of a scan: heads, strongest, to_frame, save, load
    HeadLabel               one head's label with its scores
    HeadEffects             what each head does to a metric: to_frame, matrix, save, load
    PromptScores            the table of `score_prompts`
    Circuit                 scored edges: to_frame, faithfulness, cmd, cpr, jaccard, save, load
    Why                     the terms of one attention score: to_frame, by_part, checks, save, load
    AttentionPatterns       patterns [layer, batch, head, query, key] with their tokens
    Gallery                 the page that `gallery` makes: save, head
    Thresholds              every number that decides a label
    InputError              the exception for wrong arguments and files
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interp.circuits.build import build_circuit as build_circuit
    from interp.circuits.compare import compare_circuits as compare_circuits
    from interp.effects import tasks as tasks
    from interp.effects.ablate import ablated as ablated
    from interp.effects.ablate_map import ablate as ablate
    from interp.effects.attribute import attribute as attribute
    from interp.effects.backups import find_backups as find_backups
    from interp.effects.circuit import Circuit as Circuit
    from interp.effects.circuit import find_circuit as find_circuit
    from interp.effects.head_effects import HeadEffects as HeadEffects
    from interp.effects.logit_attribution import logit_attribution as logit_attribution
    from interp.effects.metrics import logit_difference as logit_difference
    from interp.effects.patch import patch as patch
    from interp.effects.paths import path_effects as path_effects
    from interp.effects.verify import verify as verify
    from interp.effects.why import Why as Why
    from interp.effects.why import why as why
    from interp.errors import InputError as InputError
    from interp.heads import Head as Head
    from interp.kinds.kind import Kind as Kind
    from interp.kinds.kind import kind as kind
    from interp.kinds.labels import HeadLabel as HeadLabel
    from interp.kinds.scores import Thresholds as Thresholds
    from interp.models import Model as Model
    from interp.models import load_model as load_model
    from interp.models.hooks import attention_patterns as attention_patterns
    from interp.patterns.classify import classify_heads as classify_heads
    from interp.patterns.definitions import scores_by_definition as scores_by_definition
    from interp.patterns.read import read_patterns as read_patterns
    from interp.patterns.tensor import AttentionPatterns as AttentionPatterns
    from interp.scan.prompts import PromptScores as PromptScores
    from interp.scan.prompts import score_prompts as score_prompts
    from interp.scan.scan import scan_heads as scan_heads
    from interp.scan.table import HeadScan as HeadScan
    from interp.show.live.start import live as live
    from interp.show.pages.gallery import gallery as gallery
    from interp.show.pages.page import Gallery as Gallery
    from interp.sweeps.sweep import sweep as sweep
    from interp.sweeps.trajectories import trajectories as trajectories
    from interp.trust.published import compare_with_published as compare_with_published
    from interp.trust.published import published_heads as published_heads
    from interp.weights.folded import composition_scores as composition_scores

__version__ = "0.1.0"

# Module of each public name. There is no `__all__`: help() would print every class in full.
_HOME = {
    "AttentionPatterns": "patterns.tensor",
    "Circuit": "effects.circuit",
    "Gallery": "show.pages.page",
    "Head": "heads",
    "HeadEffects": "effects.head_effects",
    "HeadLabel": "kinds.labels",
    "HeadScan": "scan.table",
    "InputError": "errors",
    "Kind": "kinds.kind",
    "Model": "models",
    "PromptScores": "scan.prompts",
    "Thresholds": "kinds.scores",
    "Why": "effects.why",
    "ablate": "effects.ablate_map",
    "ablated": "effects.ablate",
    "attribute": "effects.attribute",
    "attention_patterns": "models.hooks",
    "build_circuit": "circuits.build",
    "classify_heads": "patterns.classify",
    "compare_circuits": "circuits.compare",
    "compare_with_published": "trust.published",
    "composition_scores": "weights.folded",
    "find_backups": "effects.backups",
    "find_circuit": "effects.circuit",
    "gallery": "show.pages.gallery",
    "kind": "kinds.kind",
    "live": "show.live.start",
    "load_model": "models",
    "logit_attribution": "effects.logit_attribution",
    "logit_difference": "effects.metrics",
    "patch": "effects.patch",
    "path_effects": "effects.paths",
    "published_heads": "trust.published",
    "read_patterns": "patterns.read",
    "scan_heads": "scan.scan",
    "score_prompts": "scan.prompts",
    "scores_by_definition": "patterns.definitions",
    "sweep": "sweeps.sweep",
    "tasks": "effects.tasks",
    "trajectories": "sweeps.trajectories",
    "verify": "effects.verify",
    "why": "effects.why",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOME[name]}")
    return module if name == "tasks" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*_HOME, *(name for name in globals() if name.startswith("__"))])
