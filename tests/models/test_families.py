"""What works for which family of models, tried on a small random model of each.

The table in `docs/families.md` is made of what is measured here. `INTERP_WRITE_DOCS=1` writes it.
"""

import contextlib
import functools
import gc
import math
import os
from collections.abc import Callable

import pytest
import torch
import transformers
from families import HEAD, attention_of, own_patterns, planted, read, remade
from places import ROOT
from scored import scored
from tiny_models import AROUND, CONFIGS, FURTHER, GROUPED, LATER, SIZES, tiny

import interp
from interp.effects.ablate import ablated
from interp.effects.edges import MEASURES, PATHS
from interp.heads import Head
from interp.kinds import probes as tokens
from interp.kinds.builtin import FORCED_WINDOW
from interp.kinds.labels import share_within
from interp.kinds.scores import Thresholds
from interp.kinds.targets import Blocks
from interp.models.hooks import attention_layers, run
from interp.models.reading import Reading, rereading
from interp.models.stream import stream, streams
from interp.weights.composition import KINDS
from interp.weights.direct import Readout, logit_parts
from interp.weights.folded import composition_scores

FAMILIES = {
    **{"gpt2": "GPT-2", "neo": "GPT-Neo", "neox": "GPT-NeoX", "gptj": "GPT-J", "opt": "OPT"},
    **{"bloom": "Bloom", "mpt": "MPT", "falcon": "Falcon", "llama": "Llama", "llama4": "Llama 4"},
    **{"mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma2": "Gemma 2"},
    **{"gemma3": "Gemma 3", "phi": "Phi", "gptoss": "gpt-oss", "deepseek2": "DeepSeek-V2"},
    **{"jamba": "Jamba", "lfm2": "LFM2", "granite": "Granite hybrid", "qwen3next": "Qwen3-Next"},
    **{"olmo2": "OLMo 2", "olmo3": "OLMo 3", "cohere2": "Cohere 2", "granite3": "Granite"},
    **{"phi3": "Phi 3", "stablelm": "StableLM", "smollm3": "SmolLM3", "glm4": "GLM 4"},
    **{"mixtral": "Mixtral", "qwen2moe": "Qwen2-MoE", "qwen3moe": "Qwen3-MoE"},
    **{"gemma3n": "Gemma 3n", "helium": "Helium", "persimmon": "Persimmon", "biogpt": "BioGPT"},
    **{"diffllama": "DiffLlama", "minicpm3": "MiniCPM3", "recurrentgemma": "RecurrentGemma"},
    **{"xglm": "XGLM", "gpt": "OpenAI GPT", "ctrl": "CTRL"},
    **{"nemotronh": "Nemotron-H", "bert": "BERT", "t5": "T5 encoder"},
}

FAMILIES |= {"roberta": "RoBERTa", "modernbert": "ModernBERT"}
FAMILIES |= {"t5 decoder": "T5 decoder", "bart decoder": "BART decoder"}

STACKS = {"t5": "encoder", "t5 decoder": "decoder", "bart decoder": "decoder"}

HYBRIDS = ("jamba", "lfm2", "granite", "qwen3next", "recurrentgemma", "nemotronh")
UNSTREAMED = tuple(family for family in FAMILIES if family.split()[0] in AROUND)

IDS = torch.arange(3, 27)[None]
THRESHOLDS = Thresholds()

REPRESENTATIVE = ("gpt2", "qwen3", "gemma2", "gptoss", "bloom", "llama4", "deepseek2", "granite")
REPRESENTATIVE += ("bert", "t5 decoder")
"""One family for each mechanism; the others matter before a release."""

EVERY = [
    pytest.param(family, marks=() if family in REPRESENTATIVE else pytest.mark.slow)
    for family in FAMILIES
]


@functools.cache
def opened(family: str) -> interp.Model:
    return interp.load_model(tiny(family.split()[0]))


@functools.cache
def fresh(family: str) -> transformers.PreTrainedModel:
    """A model that this package has not touched."""
    return tiny(family.split()[0])


def labels_of(
    model: interp.Model, ids: torch.Tensor = IDS, stack: str | None = None
) -> dict[Head, interp.HeadLabel]:
    found = read(model, ids, stack)
    verdicts = interp.classify_heads(
        list(found.values()),
        ids,
        layers=list(found),
        windows=[model.windows[layer] for layer in found],
        learned_sinks=model.learned_sinks,
        causal=model.direction == "causal" or stack == "decoder",
    )
    return {verdict.head: verdict for verdict in verdicts}


def patterns(family: str) -> None:
    """Patterns are what the model itself returns."""
    stack = STACKS.get(family)
    found = torch.stack([*read(opened(family), IDS, stack).values()])
    own = torch.stack(own_patterns(fresh(family), IDS, stack))
    assert torch.allclose(found, own, atol=1e-6)
    # A weak oracle otherwise: near-uniform attention looks alike whatever is wrong.
    assert own[..., 12:, :].amax() > 0.25


def streaming(family: str) -> None:
    """Queries and keys give the scores that the model's own patterns give."""
    model = opened(family)
    if not streams(model):
        raise interp.InputError("only causal models are streamed")
    ids = tokens.repeated(model.vocabulary, rows=2, length=48, bos=1, seed=0).tokens
    own = dict(zip(attention_layers(model, None), own_patterns(fresh(family), ids), strict=True))
    seen = []

    def compare(layer: int, attention: object) -> None:
        seen.append(layer)
        options = {"window": model.windows[layer], "thresholds": THRESHOLDS}
        ours, theirs = (scored(source, ids, **options) for source in (attention, own[layer]))
        assert ours.tallies.keys() == theirs.tallies.keys()
        for name, tally in ours.tallies.items():
            mean = theirs.tallies[name].mean
            assert torch.allclose(tally.mean, mean, rtol=2e-5, atol=2e-5, equal_nan=True)

    stream(model, ids, compare)
    assert seen == list(own)


def labels(family: str) -> None:
    """A head planted to attend to its own token gets that label, and no other head does."""
    model, stack = fresh.__wrapped__(family), STACKS.get(family)
    layer = attention_layers(opened(family), None)[0]
    verdicts = labels_of(interp.load_model(planted(model, layer, stack)), stack=stack)
    named = [head for head, v in verdicts.items() if v.label == "current token"]
    assert [head for head in named if head.layer == layer] == [Head(layer, HEAD)]


def effect(family: str) -> None:
    """Direct effects of heads and all other parts sum to the logits."""
    model = opened(family)
    if model.direction == "causal":
        Readout(model).check()
    elif STACKS.get(family) == "encoder":
        raise interp.InputError("the logits are the decoder's, and their direct effects too")
    else:
        logit_parts(model, IDS, IDS, decoder_tokens=IDS if STACKS.get(family) else None)


def weights(family: str) -> None:
    """Weights by head give the model's own scores, and composition scores are finite."""
    model = opened(family)
    found = composition_scores(model)
    earlier, later = attention_layers(model, None)
    for kind in KINDS:
        assert found.scores(kind)[earlier, :, later].isfinite().all()


def ablation(family: str) -> None:
    """A head of each layer can be removed, matters, and is restored afterwards.

    In a causal model the logits are then those of an attention that gives 0 for the head.
    """
    model, stack = opened(family), STACKS.get(family)
    decoded = {"decoder_input_ids": IDS} if stack else {}

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return model.plain(IDS, **decoded).logits

    before, given = logits(), []
    for each in (stack, "cross") if stack == "decoder" else (stack,):
        for head in [Head(i, i % model.n_heads) for i in attention_layers(model, None)]:
            with ablated(model, [head], stack=each):
                after = logits()
            assert (after - before).abs().max() > 1e-4 * before.abs().max()
            if model.direction == "causal":

                def silent(layer: int, out: torch.Tensor, head: Head = head) -> torch.Tensor:
                    return (
                        out.index_fill(2, torch.tensor(head.head), 0)
                        if layer == head.layer
                        else out
                    )

                with model.plain.register_forward_hook(lambda *run: given.append(run[-1].logits)):
                    stream(model, IDS, lambda *_: None, silent)
                close = 1e-4 * float(after.abs().max())
                assert torch.allclose(after[:, -1:], given[-1], atol=close)
    assert torch.equal(logits(), before)


def paths(family: str) -> None:
    """Without an earlier head's output a later head sees and does something else.

    It does something else, but sees the same, if only its values lack that output.
    """
    model = opened(family)
    if model.direction == "causal":  # Windows that show the targets of induction.
        names = "sliding_window", "window_size", "attention_window_size"
        narrow = [name for name in names if getattr(model.inner.config, name, None) == 4]
        model = interp.load_model(tiny(family, **dict.fromkeys(narrow, 32)))
    first, *_, last = attention_layers(model, None)
    heads = [Head(last, head) for head in range(4)]
    edges = interp.path_effects(model, heads, rows=2, length=33)
    changes = {name: torch.zeros(len(MEASURES)) for name in PATHS}
    for edge in edges:
        if edge.source.layer == first:
            change = torch.tensor([edge.change(measure) for measure in MEASURES])
            changes[edge.path] = changes[edge.path].maximum(change.abs())
    assert (torch.stack([changes["Q"], changes["K"]]) > 1e-6).all()
    attention, effect = changes["V"].tolist()
    assert attention < 1e-6 < effect


CAPABILITIES: dict[str, Callable[[str], None]] = {
    "patterns": patterns,
    "streaming": streaming,
    "labels": labels,
    "effect on logits": effect,
    "path effects": paths,
    "weights and composition": weights,
    "ablation": ablation,
}


@functools.cache
def measured(family: str) -> dict[str, str]:
    """For each capability `yes`, or the reason why not, in one line."""

    def ask(check: Callable[[str], None]) -> str:
        try:
            check(family)
        except interp.InputError as error:
            return " ".join(str(error).split())
        return "yes"

    return {name: ask(check) for name, check in CAPABILITIES.items()}


def row(family: str) -> str:
    """The family's line of the table."""
    model = opened(family)
    ways = "; ".join(dict.fromkeys(model.kinds))
    ways += "" if model.direction == "causal" else f", {model.direction}"
    words = ["yes" if answer == "yes" else "no" for answer in measured(family).values()]
    return f"| {' | '.join([FAMILIES[family], ways, *words])} |"


def reasons(family: str) -> list[str]:
    """Why capabilities are missing, each with those that lack it, without the model's name."""
    by_reason: dict[str, list[str]] = {}
    for name, answer in measured(family).items():
        if answer != "yes":
            whole = answer.split(f"got {opened(family).name}: ")[-1].rstrip(".")
            reason = whole.replace(opened(family).name, "the model")
            by_reason.setdefault(reason, []).append(name)
    return [f"{', '.join(names)}: {reason}." for reason, names in by_reason.items()]


PAGE = ROOT / "docs/families.md"
START, END = "<!-- families: a test makes these lines -->\n", "<!-- end -->\n"


@pytest.mark.fault("B48", "C13")
@pytest.mark.parametrize("family", EVERY)
def test_the_page_says_of_each_family_what_is_measured(family):
    answers = measured(family)
    assert answers["patterns"] == "yes"
    assert (answers["streaming"] == "yes") == (family not in UNSTREAMED)
    assert answers["labels"] == "yes"
    assert (answers["ablation"] == "yes") == (family != "diffllama")
    if os.environ.get("INTERP_WRITE_DOCS"):
        pytest.skip("the page is written")
    page = PAGE.read_text(encoding="utf-8").split(START)[1].split(END)[0].splitlines()
    assert row(family) in page
    lines = [line.removeprefix("- ").split(": ", 1) for line in page if line.startswith("- ")]
    mentioned = [text for names, text in lines if FAMILIES[family] in names.split(", ")]
    assert sorted(mentioned) == sorted(reasons(family))


@pytest.mark.skipif("INTERP_WRITE_DOCS" not in os.environ, reason="the page is only read")
def test_the_page_is_written():
    assert {family.split()[0] for family in FAMILIES} == {*CONFIGS, *FURTHER, *LATER, *AROUND}
    names = ["family", "attention", *CAPABILITIES]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|", *map(row, FAMILIES), ""]
    by_reason: dict[str, list[str]] = {}
    for family in FAMILIES:
        for reason in reasons(family):
            by_reason.setdefault(reason, []).append(FAMILIES[family])
    lines += [f"- {', '.join(families)}: {reason}" for reason, families in by_reason.items()]
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    after = rest.split(END)[1]
    made = "".join(f"{line}\n" for line in lines)
    PAGE.write_text(before + START + made + END + after, encoding="utf-8")


def visible(kind: str, length: int) -> torch.Tensor:
    """Which keys a query of such a layer sees."""
    queries, keys = torch.arange(length)[:, None], torch.arange(length)
    word, *size = kind.split(",")[0].split()
    if word == "window":
        return (keys <= queries) & (keys > queries - int(size[0]))
    if word == "chunked":
        return (keys <= queries) & (keys // int(size[0]) == queries // int(size[0]))
    assert word in ("full", "latent")
    return keys <= queries


@pytest.mark.fault("B51")
@pytest.mark.parametrize("family", EVERY)
def test_the_kind_of_each_layer_is_the_one_that_its_zeros_show(family):
    model = opened(family)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 200, (32, 16), generator=generator)
    found = read(model, ids, STACKS.get(family))
    without = [i for i, kind in enumerate(model.kinds) if kind.startswith("none")]
    assert sorted([*found, *without]) == list(range(model.n_layers))
    assert without == ([0, 2] if family in HYBRIDS else [])
    for layer, pattern in found.items():
        # In most rows and heads a visible key may get a weight that underflows in float32.
        seen = (pattern > 0).any(0).any(0)
        expected = visible(model.kinds[layer], 16)
        if model.direction != "causal" and STACKS.get(family) != "decoder":
            expected |= expected.T.clone()
            assert seen.triu(1).any()
        if "t5" in family:  # Scores are not divided: most weights underflow.
            seen |= expected
        assert torch.equal(seen, expected)
    if model.direction == "causal" and (turned := rotating(model)):
        unrotated = [i for i, kind in enumerate(model.kinds) if kind.endswith("no rotary")]
        assert unrotated == sorted({*model.attending} - turned)


def rotating(model: interp.Model) -> set[int]:
    """Layers whose queries depend on the position of what they read."""
    readings = {layer: Reading(model, layer) for layer in model.attending}
    with contextlib.ExitStack() as hooks:
        for reading in readings.values():
            hooks.enter_context(reading.watching())
        stream(model, IDS, lambda *_: None)
    with rereading(model):
        alike = {i: each.stream[..., :1, :].expand_as(each.stream) for i, each in readings.items()}
        queries = {i: each.of(alike[i]).q for i, each in readings.items()}
    return {i for i, q in queries.items() if not torch.allclose(q, q[:, :, :1], rtol=1e-4)}


def test_kinds_name_what_the_settings_say():
    assert opened("gptoss").kinds == ("window 4, learned sinks", "full, learned sinks")
    assert opened("bloom").kinds == ("full, ALiBi", "full, ALiBi")
    assert opened("llama4").kinds == ("chunked 8", "full")
    assert opened("deepseek2").kinds == ("latent", "latent")
    assert opened("lfm2").kinds == ("none (conv)", "full") * 2
    assert opened("smollm3").kinds == ("full", "full, no rotary")
    assert "attention window 4 or full" in repr(opened("gemma2"))
    scan = interp.scan_heads(opened("gemma2"), rows=1, quick=True)
    assert scan.made_by["attention"] == ["window 4", "full"]


@pytest.mark.fault("B54")
@pytest.mark.parametrize(
    ("family", "window"), [("mistral", None), ("gemma2", 0), ("gptoss", 1), ("gemma2", 16)]
)
def test_no_window_is_no_limit_and_a_window_of_1_shows_a_query_itself(family, window):
    model = interp.load_model(tiny(family, sliding_window=window))
    assert model.windows[0] == (window or None)
    reach = window or 16
    found = interp.attention_patterns(model, torch.arange(3, 19)[None])[0]
    assert torch.equal((found > 0).any(0).any(0), torch.ones(16, 16).tril().triu(1 - reach) > 0)
    rows = torch.arange(16)[None]
    streamed = {}
    stream(model, torch.arange(3, 19)[None], lambda i, a: streamed.update({i: a.rows(rows)}))
    assert torch.allclose(streamed[0], found, atol=1e-5)


@pytest.mark.fault("B54")
@pytest.mark.parametrize("use", [True, False])
def test_a_window_that_is_not_used_is_no_limit(use):
    config = transformers.Qwen2Config(
        **SIZES, **GROUPED, use_sliding_window=use, sliding_window=4, max_window_layers=1
    )
    model = interp.load_model(transformers.AutoModelForCausalLM.from_config(config))
    assert model.kinds == ("full", "window 4" if use else "full")
    found = read(model, torch.arange(3, 19)[None])
    for layer, pattern in found.items():
        assert torch.equal((pattern > 0).any(0).any(0), visible(model.kinds[layer], 16))


@pytest.mark.fault("B56")
def test_layers_without_attention_keep_their_numbers_and_are_refused_by_name():
    found = interp.attention_patterns(opened("jamba"), IDS)
    assert found.layers == (1, 3)
    assert [verdict.head.layer for verdict in interp.classify_heads(found)] == [1] * 4 + [3] * 4
    assert set(interp.scan_heads(opened("jamba"), rows=1).frame["layer"]) == {1, 3}
    with pytest.raises(interp.InputError, match=r"layers must have attention, got \[0\] of"):
        interp.attention_patterns(opened("jamba"), IDS, layers=[0])


@pytest.mark.fault("B56")
def test_a_model_without_attention_is_refused():
    config = transformers.MambaConfig(vocab_size=200, hidden_size=32, num_hidden_layers=2)
    with pytest.raises(interp.InputError, match="model must have"):
        interp.load_model(transformers.AutoModelForCausalLM.from_config(config))


@pytest.mark.fault("B96")
@pytest.mark.parametrize("family", ["bloom", "mpt"])
def test_slopes_are_those_that_heads_blind_to_tokens_show(family):
    model = tiny(family)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "query_key_value" in name or "Wqkv" in name:
                weight.zero_()
    opened = interp.load_model(model)
    last = interp.attention_patterns(opened, IDS)[:, 0, :, -1]
    falls = (last[..., -1] / last[..., -9]).log() / 8
    assert torch.allclose(falls, torch.tensor(opened.alibi_slopes).expand(2, -1), rtol=1e-3)
    near = [
        share_within(slope, 8, torch.tensor([IDS.shape[1]])) for slope in opened.alibi_slopes or ()
    ]
    assert torch.allclose(last[0, :, -8:].sum(-1), torch.cat(near), rtol=1e-4)


@pytest.mark.fault("B53", "B96")
def test_a_head_that_its_slope_alone_makes_local_is_local_by_architecture():
    model = tiny("bloom")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "query_key_value" in name:
                weight.zero_()
    scan = interp.scan_heads(model, rows=2)
    steep, flat = scan.made_by["alibi_slopes"][:2]
    assert 1 - math.exp(-8 * steep) > 0.8 > 0.5 > 1 - math.exp(-8 * flat)
    expected = [FORCED_WINDOW, "mixed"]
    assert list(scan.frame["label"][:2]) == expected
    ids = [1, *range(5, 40), *range(5, 30)]
    patterns = interp.attention_patterns(model, ids)
    assert patterns.alibi_slopes == tuple(scan.made_by["alibi_slopes"])
    for source in (patterns, interp.read_patterns(patterns)):
        assert [verdict.label for verdict in interp.classify_heads(source)[:2]] == expected
    plain = interp.classify_heads(torch.as_tensor(patterns.numpy()), ids)
    assert plain[0].label == "local window"


def test_falcon_with_alibi_is_refused_since_its_eager_and_fused_attention_differ():
    model = tiny("falcon", alibi=True)
    with torch.no_grad():
        eager, fused = (remade(model, how)(IDS).logits for how in ("eager", "sdpa"))
    assert not torch.allclose(eager, fused, atol=1e-2)
    with pytest.raises(interp.InputError, match="ALiBi"):
        interp.load_model(model)


@pytest.mark.fault("B55")
def test_scores_beside_learned_sinks_are_shares_of_all_attention():
    model = planted(tiny("gptoss"), 0)
    free = labels_of(interp.load_model(model))[Head(0, HEAD)]
    assert free.scores["current_token"] > 0.99
    seen = {}
    stream(interp.load_model(model), IDS, lambda i, a: seen.setdefault(i, a))
    with torch.no_grad():  # The sink gets the score that the head gives a token itself.
        attention_of(model, 0).sinks[HEAD] = seen[0].lse[0, HEAD, 0]
    halved = labels_of(interp.load_model(model))[Head(0, HEAD)]
    assert halved.scores["current_token"] == pytest.approx(0.5, abs=0.01)
    found = interp.attention_patterns(model, IDS)[0, 0, HEAD]
    assert torch.allclose(found.sum(-1), torch.full((24,), 0.5), atol=0.01)


@pytest.mark.fault("B16")
def test_no_earlier_layers_pattern_is_alive_when_a_layer_attends():
    model = interp.load_model(tiny("falcon", num_hidden_layers=6))
    alive = []

    def count(layer: int, pattern: torch.Tensor) -> None:
        if layer in (0, 5):
            there = [o for o in gc.get_objects() if type(o) is torch.Tensor]
            alive.append(sum(t.shape[-2:] == (37, 37) for t in there))

    run(model, torch.arange(3, 40)[None], count)
    assert alive[1] <= alive[0] + 1


@pytest.mark.fault("B53")
def test_heads_that_are_even_within_their_block_score_chance_and_are_local_by_architecture():
    inner = tiny("llama4", attention_chunk_size=3)
    with torch.no_grad():
        inner.model.layers[0].self_attn.q_proj.weight.zero_()
    model = interp.load_model(inner)
    assert model.windows == (Blocks(3), None)
    assert isinstance(model.windows[0], Blocks)
    found = interp.attention_patterns(model, [1, *range(5, 40), *range(5, 30)])
    verdicts = interp.classify_heads(found)
    for verdict in verdicts[:4]:
        assert (verdict.label, verdict.window) == (FORCED_WINDOW, 3)
        assert verdict.scores == pytest.approx(verdict.chance, abs=1e-5)
    assert {verdict.window for verdict in verdicts[4:]} == {None}
    assert verdicts[0].chance["current_token"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3, abs=0.01)
    scan = interp.scan_heads(model, rows=2, quick=True).frame[:4]
    assert set(scan["label"]) == {FORCED_WINDOW}
    for kind in ("previous_token", "current_token", "local_window"):
        assert list(scan[kind]) == pytest.approx(list(scan[f"{kind}_chance"]), abs=1e-5)
    with pytest.raises(interp.InputError, match="keep to the layer's window"):
        interp.classify_heads(found, windows=[Blocks(2), None])
