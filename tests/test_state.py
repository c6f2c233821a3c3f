"""Whatever is called, and wherever it fails, the caller's model, tensors and settings stay."""

import logging
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from test_effects import a_scan, common_words
from tiny_models import tiny
from torch.utils._python_dispatch import TorchDispatchMode

import interp
from interp import windowed
from interp.ablation import ablated, logits, losses, mean_outputs
from interp.definitions import scores_by_definition
from interp.direct import Readout, logit_parts
from interp.effects import verify
from interp.heads import Head
from interp.hooks import run
from interp.pages.gallery import gallery_of_model
from interp.paths import path_effects
from interp.sink_experiment import sink_experiment
from interp.stream import stream, streams
from interp.tokens import repeated

FAMILIES = ["llama", "bloom"]  # One that is streamed, and one that is read by hooks.


class Stop(Exception):
    """Raised by the test in the middle of a call."""


@dataclass(eq=False)
class Case:
    """A loaded model, opened, and tensors that a caller hands over again and again."""

    loaded: transformers.PreTrainedModel
    model: interp.Model
    ids: torch.Tensor
    mask: torch.Tensor
    patterns: torch.Tensor
    scan: interp.HeadScan
    logits: list[torch.Tensor] = field(default_factory=list)


@cache
def case(family: str) -> Case:
    """With modes, hooks and settings of the caller's own, so that a reset would be seen."""
    loaded = tiny(family)
    model = interp.load_model(loaded, common_words())
    ids = torch.tensor([[1, 5, 6, 7, 5, 6, 7, 5], [2, 2, 1, 9, 8, 9, 8, 9]])
    mask = (torch.arange(8) >= torch.tensor([[0], [2]])).long()
    encoding = {"input_ids": ids, "attention_mask": mask}
    patterns = interp.attention_patterns(model, encoding)  # The bridge wires itself.
    for module in (loaded, model.bridge, model.plain, model.inner):
        module.train()
        parts = list(module.modules())
        for part in parts[:: len(parts) // 3]:
            part.training = False
        parts[-1].register_forward_hook(lambda module, inputs, output: None)
    loaded.set_attn_implementation("sdpa" if loaded._supports_sdpa else "eager")
    next(loaded.parameters()).requires_grad_(False)
    made = Case(loaded, model, ids, mask, patterns, a_scan(model))
    made.logits = outputs(made)
    return made


def views(case: Case) -> list[torch.nn.Module]:
    """The caller's model, the plain one, the bridge, and what it wraps, which is no part of it."""
    return [case.loaded, case.model.plain, case.model.bridge, case.model.inner]


def modules_of(case: Case) -> list[torch.nn.Module]:
    return [*(part for model in views(case) for part in model.modules())]


def hooks_on(module: torch.nn.Module) -> list[int]:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    own = ("fwd_hooks", "bwd_hooks")  # TransformerLens' hook points keep lists of their own.
    return [len(getattr(module, name, None) or ()) for name in (*kinds, *own)]


def state(case: Case) -> dict[str, Any]:
    """Everything that must be as it was; tensors by what they hold and how often they changed."""
    given = (case.ids, case.mask, case.patterns, case.patterns.tokens)
    weights = [*case.loaded.parameters(), *case.loaded.buffers()]
    kept = logging.getLogger("transformers").level, sys.stderr, list(warnings.filters)
    return {
        "random of torch": torch.random.get_rng_state().tolist(),
        "settings of torch": (torch.is_grad_enabled(), torch.get_default_dtype()),
        "settings of the libraries": kept,
        "hooks": [hooks_on(module) for module in modules_of(case)],
        "modes": [module.training for module in modules_of(case)],
        "attention": [m.config._attn_implementation for m in (case.loaded, case.model.plain)],
        "config": [m.config.to_dict() for m in (case.loaded, case.model.plain, case.model.inner)],
        "weights": [
            (w.data_ptr(), w.dtype, w.requires_grad, w._version, w.grad is None) for w in weights
        ],
        "same weights": [{p.data_ptr() for p in m.parameters()} for m in views(case)],
        "tensors": [(t._version, t.dtype, t.tolist()) for t in given],
        "table": case.scan.frame.to_csv(),
    }


def outputs(case: Case) -> list[torch.Tensor]:
    """Logits of each view of the model, with what is dropped out drawn alike each time."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = [model(case.ids[:1]).logits for model in (case.loaded, case.model.plain)]
        return [*plain, case.model.bridge(case.ids[:1])]


def path(case: Case, progress: Callable[..., None]) -> None:
    path_effects(case.model, "L1H1", sources=["L0H0"], rows=2, length=24, progress=progress)


def ablation(case: Case, progress: Callable[..., None]) -> None:
    probe = repeated(case.model.vocabulary, rows=1, length=24, bos=1, seed=0)
    means = mean_outputs(case.model, probe)
    with ablated(case.model, [Head(0, 1), Head(1, 2)], "mean", means):
        progress()
        losses(case.model, probe)
        logits(case.model, case.ids)


def cut(case: Case, progress: Callable[..., None]) -> None:
    windowed.losses(case.model, case.ids, windowed.Cut(4, kept=1), visit=progress)


def by_definition(case: Case, progress: Callable[..., None]) -> None:
    scores_by_definition(case.patterns[1, :1], case.ids[:1])


def sinks(case: Case, progress: Callable[..., None]) -> None:
    sizes = {"size": 6, "kept": 1, "length": 20, "rows": 2}
    sink_experiment(case.model, case.scan, **sizes, progress=progress)


def readout(case: Case, progress: Callable[..., None]) -> None:
    read = Readout(case.model)
    read.check()
    with read.watching():
        stream(case.model, case.ids[:1], progress)
    logit_parts(case.model, case.ids[:1], case.ids[:1], readout=read)


def scanning(**options: Any) -> Callable[..., object]:
    return lambda case, progress: interp.scan_heads(
        case.model, rows=1, length=24, progress=progress, **options
    )


def verifying(case: Case, progress: Callable[..., None]) -> None:
    options = {"draws": 1, "rows": 2, "length": 24, "kinds": "induction"}
    verify(case.model, case.scan, progress=progress, **options)


CALLS: dict[str, Callable[[Case, Callable[..., None]], object]] = {
    "load": lambda case, progress: interp.load_model(case.loaded),
    "patterns": lambda case, progress: interp.attention_patterns(
        case.model, {"input_ids": case.ids, "attention_mask": case.mask}
    ),
    "patterns of a loaded model": lambda case, progress: interp.attention_patterns(
        case.loaded, case.ids, layers=[1]
    ),
    "a layer that is not there": lambda case, progress: interp.attention_patterns(
        case.model, case.ids, layers=[9]
    ),
    "run": lambda case, progress: run(case.model, case.ids, progress),
    "stream": lambda case, progress: stream(case.model, case.ids, progress),
    "streams": lambda case, progress: streams(case.model),
    "scan": scanning(),
    "scan by hooks": scanning(method="hooks", definitions=["stripe"]),
    "labels": lambda case, progress: interp.classify_heads(case.patterns),
    "labels of other tokens": lambda case, progress: interp.classify_heads(
        case.patterns, case.ids.flip(1) - 1
    ),
    "by definition": by_definition,
    "verify": verifying,
    "paths": path,
    "composition": lambda case, progress: interp.composition_scores(case.model),
    "gallery": lambda case, progress: interp.gallery(case.scan, case.patterns),
    "gallery of a model": lambda case, progress: gallery_of_model(
        case.scan, case.model, list(case.ids), progress=progress
    ),
    "ablation": ablation,
    "cut cache": cut,
    "sink experiment": sinks,
    "readout": readout,
}


class Interrupt(TorchDispatchMode):
    """Raises at one of torch's operations, wherever in the code that is."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        super().__init__()
        self.at, self.error, self.count = at, error, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        if self.count == self.at:
            raise self.error
        return function(*args, **(kwargs or {}))


def tried(call: str, case: Case, progress: Callable[..., None]) -> type[BaseException] | None:
    """What the call raised: a caller's mistake, and what the test raised itself, or nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            CALLS[call](case, progress)
    except (interp.InputError, NotImplementedError, Stop, KeyboardInterrupt) as error:
        return type(error)
    return None


@cache
def operations(call: str, family: str) -> int:
    with Interrupt(0, Stop) as counter:
        tried(call, case(family), lambda *_: None)
    return counter.count


@pytest.mark.parametrize("where", ["at an operation", "elsewhere"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("call", CALLS)
def test_after_any_call_interrupted_anywhere_all_is_as_before(call, family, where):
    here, draw = case(family), random.Random(f"{call} {family} {where}")
    error = draw.choice([Stop, KeyboardInterrupt])
    last = operations(call, family) if where == "at an operation" else 0
    at, after, stopped = draw.randint(1, last) if last else 0, draw.randrange(6), []

    def stop(*_: Any) -> None:
        stopped.append(where)
        if len(stopped) > after:
            raise error

    progress, handle = (lambda *_: None), None
    if where == "elsewhere" and draw.random() < 0.4:
        progress = stop
    elif where == "elsewhere":
        handle = draw.choice(modules_of(here)).register_forward_hook(stop)
    before = state(here)
    with Interrupt(at, error):
        raised = tried(call, here, progress)
    now = state(here)
    if handle is not None:
        handle.remove()
    assert [name for name in before if now[name] != before[name]] == []
    assert all(map(torch.equal, outputs(here), here.logits))
    if error is KeyboardInterrupt and (at or len(stopped) > after):
        assert raised is KeyboardInterrupt


UNTYPED = """
import random, sys
import numpy, torch
sys.path.insert(0, sys.argv[1])
from test_state import CALLS, case, tried

here = case("gpt2")
def states():
    return random.getstate(), str(numpy.random.get_state()), torch.random.get_rng_state().tolist()
for call in CALLS:
    before = states()
    tried(call, here, lambda *_: None)
    assert states() == before, call
"""


def test_no_call_draws_from_the_callers_random_numbers():
    """In a process of its own, since what checks types in tests draws some itself."""
    folder = str(Path(__file__).parent)
    run = [sys.executable, "-c", UNTYPED, folder]
    done = subprocess.run(run, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
