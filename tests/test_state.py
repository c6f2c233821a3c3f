"""Whatever is called, and wherever it fails, the caller's model, tensors and settings stay."""

import logging
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from huggingface_hub import utils as hub
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from labelled import a_scan, common_words
from libraries import settings_of_libraries
from tiny_models import tiny
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode
from typed import unchecked

import interp
from interp.effects import windowed
from interp.effects.ablate import ablated, logits, losses, mean_outputs
from interp.effects.paths import path_effects
from interp.effects.sink_experiment import sink_experiment
from interp.effects.verify import verify
from interp.heads import Head
from interp.kinds.probes import repeated
from interp.models.hooks import run
from interp.models.stream import stream, streams
from interp.models.switches import quiet
from interp.patterns.definitions import scores_by_definition
from interp.show.pages.gallery import gallery_of_model
from interp.weights.direct import Readout, logit_parts
from interp.weights.linear import linear_pass

FAMILIES = ("gpt2", "neo", "bloom", "mistral", "gemma3", "gptoss", "lfm2", "bert", "t5")
"""Fused weights, hooks only, ALiBi, a window, mixed windows, sinks, no attention, encoders."""

REPRESENTATIVE = ("gpt2", "gemma3", "bert", "t5")
"""The others matter before a release."""


class Stop(Exception):
    """Raised by the test in the middle of a call."""


@dataclass(eq=False)
class Case:
    """A loaded model, opened, and what a caller hands over again and again."""

    loaded: transformers.PreTrainedModel
    model: interp.Model
    ids: torch.Tensor
    mask: torch.Tensor
    patterns: interp.AttentionPatterns
    scan: interp.HeadScan
    table: pd.DataFrame
    arrays: tuple[np.ndarray, ...]


def opened(family: str, dtype: torch.dtype) -> Case:
    """A case with unusual modes, hooks and settings, so that a reset would be seen."""
    loaded = tiny(family).to(dtype)
    model = interp.load_model(loaded, common_words())
    ids = torch.tensor([[1, 5, 6, 7, 5, 6, 7, 5], [2, 2, 1, 9, 8, 9, 8, 9]])
    mask = (torch.arange(8) >= torch.tensor([[0], [2]])).long()
    encoding = {"input_ids": ids, "attention_mask": mask}
    stack = "encoder" if family == "t5" else None
    # The bridge wires itself, and so does transformers where it returns attention.
    patterns = interp.attention_patterns(model, encoding, stack=stack)
    if model.direction == "causal":
        model.bridge(ids)
    if stack is not None:
        interp.attention_patterns(model, ids, stack="cross", decoder_inputs=ids)
    arrays = patterns[:, :1].numpy().copy(), ids[:1].numpy().copy()
    scan = a_scan(model)
    made = Case(loaded, model, ids, mask, patterns, scan, scan.to_frame(), arrays)
    for module in views(made):
        module.train()
        parts = list(module.modules())
        for part in parts[:: len(parts) // 3]:
            part.training = False
        parts[-1].register_forward_hook(lambda module, inputs, output: None)
    loaded.set_attn_implementation("sdpa" if loaded._supports_sdpa else "eager")
    next(loaded.parameters()).requires_grad_(False)
    return made


def views(case: Case) -> list[torch.nn.Module]:
    """The caller's model, the plain one, and the bridge with what it wraps."""
    bridge = case.model.bridge if case.model.direction == "causal" else None
    return [case.loaded, case.model.plain, *([bridge, bridge.original_model] if bridge else [])]


def modules_of(case: Case) -> list[torch.nn.Module]:
    return [part for model in views(case) for part in model.modules()]


def hooks_on(module: Any) -> list[tuple[int, ...]]:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    # TransformerLens' hook points keep lists in addition.
    kept = [vars(module).get(name, ()) for name in (*kinds, "fwd_hooks", "bwd_hooks")]
    return [tuple(map(id, hooks.values() if isinstance(hooks, dict) else hooks)) for hooks in kept]


def state(case: Case) -> dict[str, Any]:
    """Everything that must be as it was; tensors by what they hold and how often they changed."""
    given = (case.ids, case.mask, case.patterns, case.patterns.tokens)
    weights = [w for view in views(case) for w in (*view.parameters(), *view.buffers())]
    parts = modules_of(case)
    configs: list[Any] = [view.config for view in views(case) if hasattr(view, "config")]
    return {
        "random numbers of Python": random.getstate(),
        "random numbers of torch": torch.random.get_rng_state().tolist(),
        "random numbers of numpy": str(np.random.get_state()),  # noqa: NPY002
        "settings of torch": (torch.is_grad_enabled(), torch.get_default_dtype()),
        "settings of the libraries": settings_of_libraries(),
        "hooks": [hooks_on(part) for part in parts],
        "hooks of all modules": len(torch_module._global_forward_hooks),
        "modes": [part.training for part in parts],
        "attributes": [sorted(part.__dict__) for part in case.loaded.modules()],
        "attention implementation": [config._attn_implementation for config in configs],
        "settings of the model": [str(vars(config)) for config in configs],
        "dtypes": [w.dtype for w in weights],
        "weights": [(w.data_ptr(), w.requires_grad, w._version, w.grad is None) for w in weights],
        "the caller's tensors": [(t._version, t.dtype, t.tolist()) for t in given],
        "the caller's arrays": [(a.dtype, a.tolist()) for a in case.arrays],
        "the caller's table": case.scan.frame.equals(case.table),
    }


def outputs(case: Case) -> list[list[float]]:
    """Logits of each view of the model, with what is dropped out drawn alike each time."""
    more = {"decoder_input_ids": case.ids[:1]} if case.model.direction == "encoder-decoder" else {}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = [model(case.ids[:1], **more).logits for model in (case.loaded, case.model.plain)]
        if case.model.direction == "causal":
            made.append(case.model.bridge(case.ids[:1]))
    return [logits.flatten().tolist() for logits in made]


def ablation(case: Case, progress: Callable[..., None]) -> None:
    probe = repeated(case.model.vocabulary, rows=1, length=24, bos=1, seed=0)
    means = mean_outputs(case.model, probe)
    with ablated(case.model, [Head(0, 1), Head(1, 2)], "mean", means):
        progress()
        losses(case.model, probe)
        logits(case.model, case.ids)


def cut(case: Case, progress: Callable[..., None]) -> None:
    windowed.check(case.model, 8)
    windowed.losses(case.model, case.ids, windowed.Cut(4, kept=1), visit=progress)


def sinks(case: Case, progress: Callable[..., None]) -> None:
    sizes = {"size": 6, "kept": 1, "length": 20, "rows": 2}
    sink_experiment(case.model, case.scan, **sizes, progress=progress)


def readout(case: Case, progress: Callable[..., None]) -> None:
    read = Readout(case.model)
    read.check()
    linear_pass(case.model, case.ids[:1], progress, read.norms)
    logit_parts(case.model, case.ids[:1], case.ids[:1], readout=read)


SMALL: dict[str, Any] = {"rows": 1, "length": 24}
VERIFY: dict[str, Any] = {
    "draws": 1,
    "rows": 2,
    "length": 24,
    "kinds": "induction",
    "methods": ["mean"],
}
CALLS: dict[str, Callable[[Case, Callable[..., None]], object]] = {
    "load": lambda case, progress: interp.load_model(case.loaded),
    "patterns": lambda case, progress: interp.attention_patterns(
        case.model, {"input_ids": case.ids, "attention_mask": case.mask}
    ),
    "patterns of a loaded model": lambda case, progress: interp.attention_patterns(
        case.loaded, case.ids, layers=[1]
    ),
    "patterns across": lambda case, progress: interp.attention_patterns(
        case.model, case.ids, stack="cross", decoder_inputs=case.ids
    ),
    "a layer that is not there": lambda case, progress: interp.attention_patterns(
        case.model, case.ids, layers=[9]
    ),
    "run": lambda case, progress: run(case.model, case.ids, progress),
    "stream": lambda case, progress: streams(case.model) and stream(case.model, case.ids, progress),
    "scan": lambda case, progress: interp.scan_heads(case.model, **SMALL, progress=progress),
    "scan by hooks": lambda case, progress: interp.scan_heads(
        case.model, **SMALL, progress=progress, method="hooks", definitions=["stripe"], quick=True
    ),
    "labels": lambda case, progress: interp.classify_heads(case.patterns),
    "labels of arrays": lambda case, progress: interp.classify_heads(*case.arrays),
    "arrays by name": lambda case, progress: interp.read_patterns(
        {"layer1": case.arrays[0][1], "tokens": case.arrays[1]}
    ),
    "labels of other tokens": lambda case, progress: interp.classify_heads(
        case.patterns, case.ids.flip(1) - 1
    ),
    "by definition": lambda case, _: scores_by_definition(case.patterns[1, :1], case.ids[:1]),
    "prompts": lambda case, progress: interp.score_prompts(
        case.model, case.ids.tolist(), progress=progress
    ),
    "verify": lambda case, progress: verify(case.model, case.scan, progress=progress, **VERIFY),
    "paths": lambda case, progress: path_effects(
        case.model, "L1H1", sources=["L0H0"], rows=2, length=24, progress=progress
    ),
    "composition": lambda case, progress: interp.composition_scores(case.model),
    "gallery": lambda case, progress: interp.gallery(case.scan, case.patterns),
    "gallery of a model": lambda case, progress: gallery_of_model(
        case.scan, case.model, [case.ids[0]], progress=progress
    ),
    "ablation": ablation,
    "cut cache": cut,
    "sink experiment": sinks,
    "readout": readout,
}


class Interrupt(TorchDispatchMode):
    """Raises at one of torch's operations, wherever in the code that is."""

    def __init__(self, at: int | None, error: type[BaseException]) -> None:
        super().__init__()
        self.at, self.error, self.count = at, error, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        if self.count == self.at:
            raise self.error
        return function(*args, **(kwargs or {}))


class End(NamedTuple):
    """How a call ends: at a share of its operations or of the model's modules, or by itself."""

    where: str
    share: float
    after: int
    error: type[BaseException]


ENDS = st.builds(
    End,
    st.sampled_from(["by itself", *["operation"] * 4, *["module"] * 2, "progress"]),
    st.integers(0, 99).map(lambda hundredths: hundredths / 100),
    st.integers(0, 5),
    st.sampled_from([Stop, KeyboardInterrupt, torch.OutOfMemoryError]),
)

OPERATIONS: Counter[tuple[str, str]] = Counter()
"""How many of torch's operations a call makes that ends by itself."""


def tried(call: str, case: Case, progress: Callable[..., None]) -> BaseException | None:
    """What the call raised: a caller's mistake, and what the test raised itself, or nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            CALLS[call](case, progress)
    except (interp.InputError, Stop, KeyboardInterrupt, torch.OutOfMemoryError) as error:
        return error
    return None


def ended(case: Case, call: str, end: End, before: dict[str, Any], name: str) -> dict[str, Any]:
    """What there is after the call, which must be all that there was before it."""
    stopped = []

    def stop(*_: Any) -> None:
        stopped.append(end)
        if len(stopped) > end.after:
            raise end.error

    at = handle = None
    if end.where == "operation":
        at = 1 + int(end.share * (OPERATIONS[name, call] or 1000))
    elif end.where == "module":
        parts = modules_of(case)
        handle = parts[int(end.share * len(parts))].register_forward_hook(stop)
    with Interrupt(at, end.error) as interrupt:
        raised = tried(call, case, stop if end.where == "progress" else lambda *_: None)
    if handle is not None:
        handle.remove()
    if end.where == "by itself":
        OPERATIONS[name, call] = interrupt.count
    told = f"{call!r} of {name}, ended by {raised!r}, {end.where} {at or len(stopped)}"
    now = state(case)
    changed = [part for part in now if now[part] != before[part]]
    assert not changed, f"{told}: {', '.join(changed)} not as before"
    now["logits"] = outputs(case)  # Last, since a model left as it should not be may not run.
    assert now["logits"] == before["logits"], f"{told}: logits not as before"
    if end.error is KeyboardInterrupt and (interrupt.count == at or len(stopped) > end.after):
        assert isinstance(raised, KeyboardInterrupt), f"{told}: an interrupt was swallowed"
    return now


@pytest.mark.fault("B15", "B25", "B73", "C21")
@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=() if f in REPRESENTATIVE else pytest.mark.slow) for f in FAMILIES],
)
@settings(
    max_examples=2,  # The first one has every call in order, each ending by itself.
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # To shrink and to explain one failure would take minutes.
)
@given(
    calls=st.permutations(list(CALLS)),
    ends=st.lists(ENDS, min_size=len(CALLS), max_size=len(CALLS)),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_after_any_call_interrupted_anywhere_all_is_as_before(family, calls, ends, dtype):
    case = opened(family, dtype)
    with unchecked():  # Checks of types draw from Python's random numbers.
        before = state(case) | {"logits": outputs(case)}
        for call, end in zip(calls, ends, strict=True):
            before = ended(case, call, end, before, family)


@pytest.mark.fault("C21")
@pytest.mark.parametrize("hub_bars", [True, False])
def test_threads_and_errors_leave_the_settings_of_the_libraries(hub_bars):
    (hub.enable_progress_bars if hub_bars else hub.disable_progress_bars)()
    before = settings_of_libraries()

    def load(number: int) -> None:
        with suppress(Stop), quiet():
            assert logging.getLogger("transformers").level == logging.ERROR
            time.sleep(0.01 * number)
            raise Stop

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(load, [3, 1, 0, 2]))
    try:
        assert settings_of_libraries() == before
    finally:
        hub.enable_progress_bars()


@pytest.mark.fault("C17")
@pytest.mark.parametrize("family", ["llama", "neo"])
def test_threads_that_share_a_model_get_what_each_would_get_alone(family):
    """Patterns, scans, scores, effects and ablation at once; the model is whole afterwards."""
    model = interp.load_model(tiny(family), common_words())
    rows = [[1, *range(5 + i, 15 + i), *range(5 + i, 15 + i)] for i in range(3)]

    def without_a_head(ids: list[int]) -> torch.Tensor:
        with ablated(model, "L0H1"):
            time.sleep(0.01)  # Others run meanwhile.
            return logits(model, torch.tensor([ids]))

    def numbers(table: pd.DataFrame) -> torch.Tensor:
        return torch.tensor(table.select_dtypes("number").to_numpy(dtype=float))

    jobs: list[Callable[[list[int]], torch.Tensor]] = [
        lambda ids: interp.attention_patterns(model, ids).as_subclass(torch.Tensor),
        lambda ids: numbers(interp.score_prompts(model, [ids]).frame),
        lambda ids: numbers(interp.scan_heads(model, rows=1, length=24, quick=True).frame),
        without_a_head,
    ]
    tasks = [(job, ids) for ids in rows for job in jobs]
    alone = [job(ids) for job, ids in tasks]
    hooks = [hooks_on(part) for part in model.plain.modules()]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda task: task[0](task[1]), tasks))
    # Sums of float32 depend on where in memory the numbers are.
    close = {"rtol": 1e-4, "atol": 1e-5, "equal_nan": True}
    for found, expected in zip([*together, *(job(ids) for job, ids in tasks[:4])], alone + alone):
        torch.testing.assert_close(found, expected, **close)
    assert model.plain.config._attn_implementation == "eager"
    assert [hooks_on(part) for part in model.plain.modules()] == hooks
