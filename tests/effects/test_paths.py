"""Path effects, compared with a slow computation by hooks in double precision."""

import itertools
import json
from contextlib import contextmanager

import pytest
import torch
import transformers
from tiny_models import GROUPED, SIZES, scaled, tiny

import interp
from interp.effects import paths
from interp.effects.edges import Edge, PathEffects
from interp.effects.paths import path_effects
from interp.heads import Head
from interp.kinds import probes as tokens

FAMILIES = {
    "gpt2": {"n_layer": 3},
    "llama": {"num_hidden_layers": 3},
    "mistral": {"sliding_window": 30},
    "neox": {},
    "qwen3": {},
    "gemma2": {"sliding_window": 30},  # Norms after the heads, capped logits.
    "olmo2": {},  # Norms after the heads only.
    "granitemoe": {"residual_multiplier": 0.4, "logits_scaling": 2.0},
}
KINDS = {"olmo2": transformers.Olmo2Config, "granitemoe": transformers.GraniteMoeConfig}
LENGTH, ROWS = 40, 2

SIZE = 0.15
"""A previous-token head is a part of the size of x: without it the norm's scale is another."""

NAMES = {
    "gpt2": ("transformer.h", "ln_1", "attn", "c_proj", "transformer.ln_f"),
    "neox": (
        "gpt_neox.layers",
        "input_layernorm",
        "attention",
        "dense",
        "gpt_neox.final_layer_norm",
    ),
}
NAMES["olmo2"] = ("model.layers", "none", "self_attn", "o_proj", "model.norm")
LIKE_LLAMA = ("model.layers", "input_layernorm", "self_attn", "o_proj", "model.norm")


def built(family: str) -> transformers.PreTrainedModel:
    """A small model in which norms do not do what they are initialized to do."""
    changes = FAMILIES[family]
    if family not in KINDS:
        model = tiny(family, **changes)
    else:
        config = KINDS[family](**SIZES, **GROUPED, bos_token_id=1, eos_token_id=2, pad_token_id=2)
        for name, value in changes.items():
            setattr(config, name, value)
        torch.manual_seed(0)
        model = scaled(transformers.AutoModelForCausalLM.from_config(config))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                weight += torch.rand(weight.shape, generator=generator) / 2
    return model


class ByHand:
    """A model of transformers in double precision, with eager attention and plain hooks."""

    def __init__(self, family: str, ids: torch.Tensor):
        self.family, self.ids = family, ids
        self.model = built(family).double()
        self.model.set_attn_implementation("eager")
        self.model.set_experts_implementation("eager")  # Others know no double precision.
        blocks, norm, attention, projection, final = NAMES.get(family, LIKE_LLAMA)
        self.blocks = [*self.model.get_submodule(blocks)]
        self.norms = [getattr(block, norm, torch.nn.Identity()) for block in self.blocks]
        self.attentions = [block.get_submodule(attention) for block in self.blocks]
        self.projections = [each.get_submodule(projection) for each in self.attentions]
        follows = family in ("gemma2", "olmo2")
        self.after = [getattr(b, "post_attention_layernorm" * follows, None) for b in self.blocks]
        self.times = getattr(self.model.config, "residual_multiplier", 1.0)
        self.divisor = getattr(self.model.config, "logits_scaling", 1.0)
        self.final = self.model.get_submodule(final)

    def inputs_of(self, *modules: torch.nn.Module | None) -> list[torch.Tensor]:
        seen = {None: torch.zeros(ROWS, LENGTH, 32)}
        handles = [
            module.register_forward_pre_hook(lambda m, inputs: seen.__setitem__(m, inputs[0]))
            for module in modules
            if module is not None
        ]
        self.run()
        for handle in handles:
            handle.remove()
        return [seen[module] for module in modules]

    def frozen(self, norm: torch.nn.Module, part: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """A part of `x` behind a norm that has its scale at `x`, without its bias."""
        if isinstance(norm, torch.nn.LayerNorm):
            scale = (x.var(-1, unbiased=False) + norm.eps).sqrt()
            return (part - part.mean(-1, keepdim=True)) / scale[..., None] * norm.weight.detach()
        eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
        gain = norm.weight.detach() + (self.family == "gemma2")
        return part / (x.square().mean(-1) + eps).sqrt()[..., None] * gain

    def run(self):
        with torch.no_grad():
            return self.model(self.ids, output_attentions=True, use_cache=False)

    def output(
        self, layer: int, head: int, z: torch.Tensor, projected: torch.Tensor
    ) -> torch.Tensor:
        """What a head's columns of z add to the stream, without the bias of W_O."""
        alone = torch.zeros_like(z)
        alone[..., 8 * head : 8 * head + 8] = z[..., 8 * head : 8 * head + 8]
        projection, after = self.projections[layer], self.after[layer]
        with torch.no_grad():
            part = projection(alone) - projection(torch.zeros_like(alone))
        return self.times * (part if after is None else self.frozen(after, part, projected))

    def reader(self, layer: int, path: str) -> tuple[torch.nn.Module, slice | torch.Tensor]:
        """The linear map that makes Q, K or V, and which of its outputs those are."""
        attention = self.attentions[layer]
        which = "QKV".index(path)
        if self.family == "gpt2":
            return attention.c_attn, slice(32 * which, 32 * which + 32)
        if self.family == "neox":
            return attention.query_key_value, torch.arange(96) // 8 % 3 == which
        return attention.get_submodule(f"{path.lower()}_proj"), slice(None)

    @contextmanager
    def overwritten(self, source: Head | torch.Tensor | None, to: Head, path: str, other=0):
        """Passes in which one input of `to` lacks what `source` wrote, or has what `other` gives.

        `other` is a z of the source's layer. A tensor is itself what is taken from the stream.
        """
        writer = source.layer if isinstance(source, Head) else 0
        x, z, projected = self.inputs_of(
            self.blocks[to.layer], self.projections[writer], self.after[writer]
        )
        part = 0 if source is None else source
        if isinstance(source, Head):
            part = self.output(source.layer, source.head, z - other, projected)
        with torch.no_grad():
            changed = self.norms[to.layer](x - part)
        module, columns = self.reader(to.layer, path)

        def overwrite(module, inputs, output):
            output = output.clone()
            output[..., columns] = module.forward(changed)[..., columns]
            return output

        with module.register_forward_hook(overwrite):
            yield

    def logits(self, source: Head, to: Head, path: str, other=0) -> torch.Tensor:
        """Logits after each prompt of a pass on what `to` alone puts out in `overwritten`."""
        projection, columns = self.projections[to.layer], slice(8 * to.head, 8 * to.head + 8)
        with self.overwritten(source, to, path, other):
            (z,) = self.inputs_of(projection)

        def replace(module, inputs):
            inputs[0][..., columns] = z[..., columns]

        with projection.register_forward_pre_hook(replace):
            return self.run().logits[:, -1]

    def measured(self, source: Head | None, to: Head, path: str) -> tuple[float, float]:
        """Stripe and effect of `to` in a whole pass in which one input is overwritten."""
        last, later = self.inputs_of(self.final, self.after[to.layer])
        values, v_columns = self.reader(to.layer, "V")
        seen = []
        with self.overwritten(source, to, path):
            handle = values.register_forward_hook(lambda m, i, out: seen.append(out))
            pattern = self.run().attentions[to.layer][:, to.head]
            handle.remove()
        v = seen[0][..., v_columns].unflatten(-1, (-1, 8))
        v = v[:, :, to.head * v.shape[2] // 4]

        stripes, effects = [], []
        for row, ids in enumerate(self.ids.tolist()):
            for q in range(LENGTH):
                keys = [p + 1 for p in range(1, q) if ids[p] == ids[q] and self.sees(q, p + 1)]
                if not keys:
                    continue
                stripes.append(pattern[row, q, keys].sum().item())
                if q + 1 < LENGTH:
                    brought = (pattern[row, q, keys, None] * v[row, keys]).sum(0)
                    z = torch.zeros(32).double()
                    z[8 * to.head : 8 * to.head + 8] = brought
                    c = self.output(to.layer, to.head, z, later[row, q])
                    with torch.no_grad():
                        W_U = self.model.get_output_embeddings().weight
                        logits = W_U @ self.frozen(self.final, c, last[row, q]) / self.divisor
                    effects.append((logits[ids[q + 1]] - logits.mean()).item())
        return sum(stripes) / len(stripes), sum(effects) / len(effects)

    def sees(self, q: int, k: int) -> bool:
        return self.family != "mistral" or q - k < 30


def probe_of(model: interp.Model, rows: int = ROWS) -> tokens.Probe:
    return tokens.repeated(model.vocabulary, rows=rows, length=LENGTH, bos=model.bos, seed=0)


def changes(found: PathEffects, path: str, measure: str = "stripe") -> torch.Tensor:
    return torch.tensor([e.change(measure) for e in found if e.path == path])


def edge(found: PathEffects, source: Head, to: Head, path: str) -> Edge:
    return next(e for e in found.edges if (e.source, e.to, e.path) == (source, to, path))


@pytest.mark.fault("C23")  # The mixture of experts of Granite keeps a cache unless told not to.
@pytest.mark.parametrize("family", FAMILIES)
def test_each_path_is_a_pass_in_which_that_input_alone_is_overwritten(family):
    model = interp.load_model(built(family))
    to = Head(model.n_layers - 1, 2)  # Of two key heads it reads the second.
    found = path_effects(model, [to], rows=ROWS, length=LENGTH)
    slow = ByHand(family, probe_of(model).tokens)
    as_it_is = slow.measured(None, to, "K")
    for path in "QKV":
        measure = "effect" if path == "V" else "stripe"
        from_first = [e for e in found.edges if e.path == path and e.source.layer == 0]
        one = max(from_first, key=lambda e: abs(e.change(measure)))
        assert (one.stripe_before, one.effect_before) == pytest.approx(as_it_is, abs=1e-5)
        without = slow.measured(one.source, to, path)
        assert (one.stripe_after, one.effect_after) == pytest.approx(without, abs=1e-5)
        # And that is not because nothing moves.
        assert abs(one.change(measure)) > 3e-4


@pytest.mark.parametrize("family", ["gpt2", "llama", "neox", "qwen3", "gemma2", "olmo2"])
def test_on_prompts_the_changed_head_runs_in_the_model_and_the_metric_follows(family):
    """Also the replacement by a corrupted run, and by zero."""
    generator = torch.Generator().manual_seed(2)
    clean, corrupted = torch.randint(3, 200, (2, ROWS, 12), generator=generator)
    metric = interp.logit_difference(right=[7, 20], wrong=[9, 30])
    model = interp.load_model(built(family))
    to = Head(model.n_layers - 1, 2)
    slow = ByHand(family, clean)

    def difference(logits: torch.Tensor) -> torch.Tensor:
        return logits[[0, 1], [7, 20]] - logits[[0, 1], [9, 30]]

    before = difference(slow.run().logits[:, -1])
    for other in (None, corrupted):
        found = path_effects(model, to, prompts=clean, corrupted=other, metric=metric)
        for path in "QKV":
            edges = [e for e in found if e.path == path]
            one = max(edges, key=lambda e: abs(e.change()))
            z = 0
            if other is not None:
                twin = ByHand(family, other)
                (z,) = twin.inputs_of(twin.projections[one.source.layer])
            after = difference(slow.logits(one.source, to, path, z))
            assert one.metric_before == pytest.approx(before.mean().item(), abs=1e-5)
            assert one.metric_after == pytest.approx(after.mean().item(), abs=1e-5)
            assert abs(one.change()) > 1e-3
            ends = sorted((after - before).tolist())
            assert [one.metric_change_low, one.metric_change_high] == pytest.approx(ends, abs=1e-5)
            matrix = found.matrix(path)
            assert matrix.loc[str(one.source), str(to)] == one.change()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_embedding_and_mlps_are_senders_too(family):
    generator = torch.Generator().manual_seed(2)
    clean, corrupted = torch.randint(3, 200, (2, ROWS, 12), generator=generator)
    metric = interp.logit_difference(right=[7, 20], wrong=[9, 30])
    model, to = interp.load_model(built(family)), Head(1, 2)
    slow, wrote = ByHand(family, clean), []
    for run in (slow, ByHand(family, corrupted)):
        with run.blocks[0].mlp.register_forward_hook(lambda m, i, out: wrote.append(out)):
            wrote.extend(run.inputs_of(run.blocks[0]))
    (mlp, embedding), (mlp_2, embedding_2) = wrote[:2], wrote[2:]
    sources = ["embedding", Head(0, 1), "L0 MLP"]
    for other, parts in (
        (None, (embedding, mlp)),
        (corrupted, (embedding - embedding_2, mlp - mlp_2)),
    ):
        options = {"prompts": clean, "corrupted": other, "metric": metric}
        found = path_effects(model, to, sources=sources, **options)
        assert [*found.matrix("K").index] == ["embedding", "L0H1", "L0 MLP"]
        for path, (name, part) in itertools.product("QKV", zip(sources[::2], parts)):
            logits = slow.logits(part, to, path)
            after = logits[[0, 1], [7, 20]] - logits[[0, 1], [9, 30]]
            one = next(e for e in found if (str(e.source), e.path) == (name, path))
            assert one.metric_after == pytest.approx(after.mean().item(), abs=1e-5)
        assert all(found.matrix("V").abs().loc[["embedding", "L0 MLP"], str(to)] > 1e-3)
    again = PathEffects.of_json(found.to_json())
    assert again.edges == found.edges
    with pytest.raises(interp.InputError, match="sources must be in one of"):
        path_effects(model, to, sources="L7 MLP")


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_head_that_puts_out_nothing_feeds_nobody(family):
    source = tiny(family)
    with torch.no_grad():
        if family == "gpt2":
            source.transformer.h[0].attn.c_proj.weight[8:16] = 0
        else:
            source.model.layers[0].self_attn.o_proj.weight[:, 8:16] = 0
    found = path_effects(source, ["L1H0", "L1H2"], rows=ROWS, length=LENGTH)
    for one in found:
        ends = [value for name, value in one.record().items() if "change" in name]
        if one.source == Head(0, 1):
            changes = [one.change(), one.change("effect"), *ends]
            assert changes == pytest.approx([0] * 6, abs=1e-7)
        else:
            assert abs(one.change("effect")) > 1e-6


def test_the_bias_of_the_output_is_nobodys_and_stays():
    source = tiny("gpt2")
    with torch.no_grad():
        source.transformer.h[0].attn.c_proj.weight.zero_()
        source.transformer.h[0].attn.c_proj.bias.fill_(3).mul_(torch.arange(32) % 5)
    found = path_effects(source, ["L1H0"], rows=ROWS, length=LENGTH)
    assert all(e.change("effect") == pytest.approx(0, abs=1e-7) for e in found.edges)


@pytest.mark.parametrize("times", [1, 1e5])
def test_before_is_what_the_scan_says(times):
    """Also where float32 tells scores apart too coarsely."""
    own = tiny("llama")
    with torch.no_grad():
        for layer in own.model.layers:
            layer.self_attn.q_proj.weight *= times
    model = interp.load_model(own)
    scan = interp.scan_heads(model, rows=4, length=LENGTH).frame.set_index("name")
    found = path_effects(model, ["L1H1", "L1H2"], rows=4, length=LENGTH, seed=0)
    for one in found.edges:
        row = scan.loc[str(one.to)]
        assert one.stripe_before == pytest.approx(row["induction"], abs=1e-6)
        assert one.effect_before == pytest.approx(row["induction_logit_effect"], abs=1e-6)


def test_the_values_leave_the_stripe_as_it_is():
    found = path_effects(tiny("llama"), ["L1H1"], rows=ROWS, length=LENGTH)
    by_path = {path: changes(found, path).abs().max() for path in "QKV"}
    assert by_path["V"] < 1e-6 < 1e-4 < min(by_path["Q"], by_path["K"])


def test_heads_are_measured_each_for_itself_and_batches_do_not_matter(monkeypatch):
    model = interp.load_model(tiny("llama", num_hidden_layers=3))
    options = {"rows": 3, "length": LENGTH}
    together = path_effects(model, ["L2H1", "L1H0", "L2H0"], **options)
    assert together.to == [Head(2, 1), Head(1, 0), Head(2, 0)]
    assert [e.to for e in together.edges] == sorted(
        (e.to for e in together.edges), key=together.to.index
    )
    monkeypatch.setattr(paths, "_TOKENS", 2 * LENGTH)
    # Heads 0 and 1 of a layer share their keys.
    alone = path_effects(model, ["L2H0"], sources=["L1H2", "L0H3"], **options)
    assert {e.source for e in alone} == {Head(0, 3), Head(1, 2)}
    for one in alone.edges:
        other = edge(together, one.source, one.to, one.path)
        assert one.stripe_after == pytest.approx(other.stripe_after, abs=1e-6)
        assert one.effect_after == pytest.approx(other.effect_after, abs=1e-6)
        assert one.stripe_change_low == pytest.approx(other.stripe_change_low, abs=1e-6)


def test_the_interval_is_of_the_change_row_by_row():
    model = interp.load_model(tiny("llama"))
    found = path_effects(model, ["L1H0"], rows=8, length=LENGTH)
    for one in found:
        low, high = one.stripe_change_low, one.stripe_change_high
        assert low - 1e-9 <= one.change() <= high + 1e-9
        low, high = one.effect_change_low, one.effect_change_high
        assert low - 1e-9 <= one.change("effect") <= high + 1e-9
    wide = [e for e in found if e.path == "K" and e.stripe_change_low < e.stripe_change_high]
    assert wide
    again = path_effects(model, "L1H0", sources="0.2", rows=8, length=LENGTH)
    assert again.edges == tuple(one for one in found if one.source == Head(0, 2))
    other = path_effects(model, ["L1H0"], rows=8, length=LENGTH, seed=1)
    assert other.edges != found.edges


def test_the_edges_as_list_table_and_file(tmp_path):
    model = interp.load_model(tiny("llama", num_hidden_layers=3))
    found = path_effects(model, ["L2H0", "L1H1"], rows=ROWS, length=LENGTH)
    to_last = [e.source for e in found if (e.to, e.path) == (Head(2, 0), "K")]
    assert to_last == [Head(layer, head) for layer in (0, 1) for head in range(4)]
    strongest = found.strongest((2, 0), top=3)
    every = [e.change() for e in found if (e.to, e.path) == (Head(2, 0), "K")]
    assert [e.change() for e in strongest] == sorted(every)[:3]
    (by_value,) = found.strongest("1.1", "V", measure="effect")
    values = [e.change("effect") for e in found if (e.to, e.path) == (Head(1, 1), "V")]
    assert by_value.change("effect") == min(values)

    frame = found.to_frame()
    assert len(frame) == 3 * (8 + 4)
    row, first = frame.iloc[0], found.edges[0]
    assert (row["from"], row["to"], row["path"]) == ("L0H0", "L2H0", "Q")
    assert row["stripe_after"] == first.stripe_after
    assert row["effect_change_high"] == first.effect_change_high
    found.save(tmp_path / "paths.json")
    again = PathEffects.load(tmp_path / "paths.json")
    assert (again.edges, again.made_by) == (found.edges, json.loads(json.dumps(found.made_by)))
    assert "36 edges from 8 sources to L2H0, L1H1" in repr(found)
    assert f"stripe {first.stripe_before:.2f} to {first.stripe_after:.2f}" in repr(first)


def test_edges_on_prompts_are_a_matrix_and_a_file_and_memory_does_not_matter(tmp_path, monkeypatch):
    model, seen = interp.load_model(tiny("llama", num_hidden_layers=3)), []
    own = {"prompts": [[5, 6, 7, 8]], "metric": interp.logit_difference(right=[7], wrong=[9])}
    to = ["L2H0", "L1H1", "L2H3"]
    found = path_effects(model, to, **own, progress=lambda *counts: seen.append(counts))
    assert seen[-1] == (60, 60)
    matrix = found.matrix("Q")
    assert [*matrix] == to
    assert [*matrix.index] == [f"L{layer}H{head}" for layer in (0, 1) for head in range(4)]
    assert matrix["L1H1"].isna().tolist() == [False] * 4 + [True] * 4
    assert matrix.loc["L1H3", "L2H0"] == edge(found, Head(1, 3), Head(2, 0), "Q").change()
    found.save(tmp_path / "own.json")
    again = PathEffects.load(tmp_path / "own.json")
    assert again.to_frame().equals(found.to_frame())
    assert again.to_frame()["metric_change_low"].isna().all()
    assert "metric" in repr(again)
    monkeypatch.setattr(paths, "_NUMBERS", 1)
    one_by_one = path_effects(model, to, **own)
    assert (one_by_one.matrix("V") - found.matrix("V")).abs().max().max() < 1e-6


def test_on_prompts_what_cannot_be_measured_is_refused():
    metric = interp.logit_difference(right=[7], wrong=[9])
    for wrong in ({"prompts": [[5, 6]]}, {"metric": metric}, {"corrupted": [[5, 6]]}):
        with pytest.raises(interp.InputError, match="prompts must come with a metric"):
            path_effects(tiny("llama"), "L1H0", **wrong)


@pytest.mark.parametrize("family", ["gptoss", "mistral"])
def test_windows_and_learned_sinks_are_the_models_own(family):
    """The clean pass by our measure is the scan's, which knows them."""
    changes = {"sliding_window": 30, "layer_types": ["sliding_attention"] * 2}
    model = interp.load_model(tiny(family, **changes))
    scan = interp.scan_heads(model, rows=ROWS, length=LENGTH).frame.set_index("name")
    found = path_effects(model, ["L1H1", "L1H2"], rows=ROWS, length=LENGTH)
    for one in found.edges:
        assert one.stripe_before == pytest.approx(scan.loc[str(one.to), "induction"], abs=1e-6)


def test_bfloat16_says_about_the_same():
    exact = path_effects(tiny("llama"), ["L1H1"], rows=ROWS, length=LENGTH)
    rough = path_effects(tiny("llama").to(torch.bfloat16), ["L1H1"], rows=ROWS, length=LENGTH)
    assert torch.allclose(changes(exact, "K"), changes(rough, "K"), atol=0.02)


def test_progress_counts_removals():
    seen = []
    options = {"rows": ROWS, "length": LENGTH, "progress": lambda *counts: seen.append(counts)}
    path_effects(tiny("llama", num_hidden_layers=3), ["L2H0", "L1H1"], **options)
    assert seen == [(i, 12) for i in range(1, 13)]


@pytest.mark.parametrize(
    ("family", "options", "why"),
    [
        ("llama", {"to": []}, "to must name at least one head"),
        ("llama", {"to": "L2H0"}, "to must be heads of LlamaForCausalLM, got L2H0"),
        ("llama", {"to": "L0H1"}, "to must come in a later layer than a source, got L0H1"),
        ("llama", {"sources": ["L1H1"]}, "to must come in a later layer than a source, got L1H0"),
        ("llama", {"sources": ["L0H4"]}, "sources must be heads of LlamaForCausalLM, got L0H4"),
        ("llama", {"to": ["head 3"]}, "head must be named like L5H1"),
        ("llama", {"rows": 1}, "rows must be greater than or equal to 2, got 1"),
        ("llama", {"length": 65}, "length must fit the model's context"),
        ("mistral", {}, "to must have visible induction targets, got L1H0, .* sees 4 tokens"),
        ("bert", {}, "model must be one whose attention can be streamed"),
    ],
)
def test_what_cannot_be_measured_is_refused(family, options, why):
    with pytest.raises(interp.InputError, match=f"^{why}"):
        path_effects(tiny(family), **{"to": ["L1H0"], "length": LENGTH, **options})


def test_numbers_that_are_not_finite_are_refused():
    source = tiny("llama")
    with torch.no_grad():
        source.model.layers[0].self_attn.q_proj.weight[0, 0] = torch.nan
    with pytest.raises(interp.InputError):
        path_effects(source, ["L1H0"], rows=ROWS, length=LENGTH)


def test_a_bridge_is_refused_in_favour_of_the_model_that_it_wraps():
    bridge = interp.load_model(tiny("llama")).bridge
    with pytest.raises(interp.InputError, match=r"got a TransformerBridge of .* built from"):
        path_effects(bridge, ["L1H0"], length=LENGTH)


def test_a_model_whose_parts_do_not_sum_to_the_logits_is_refused():
    model = interp.load_model(tiny("llama"))
    model.plain.model.layers[0].register_forward_hook(lambda m, i, out: out + out**3 / 10)
    with pytest.raises(interp.InputError, match=r"outputs up to the logits.* do not sum"):
        path_effects(model, ["L1H0"], length=LENGTH)


@pytest.mark.parametrize("family", ["jamba", "qwen3next"])
def test_in_a_hybrid_the_sources_are_the_heads_of_earlier_layers_that_attend(family):
    found = path_effects(tiny(family), ["L3H1"], rows=ROWS, length=LENGTH)
    assert {edge.source for edge in found} == {Head(1, head) for head in range(4)}
    metric = interp.logit_difference(right=[7], wrong=[9])
    own = {"prompts": [[5, 6, 7, 8]], "metric": metric}
    on_prompts = path_effects(tiny(family), ["L3H1"], **own)
    # A head that reads what is there anyway changes nothing, also before an output gate.
    same = path_effects(tiny(family), ["L3H1"], corrupted=own["prompts"], **own)
    assert changes(on_prompts, "V", "metric").abs().min() > 1e-5
    assert changes(same, "V", "metric").abs().max() < 1e-6
    assert min(changes(found, path, "effect").abs().max() for path in "QKV") > 1e-7


def test_edges_that_were_not_measured_cannot_be_asked_for():
    found = path_effects(tiny("llama"), ["L1H0"], rows=ROWS, length=LENGTH)
    for name, ask in {
        "path": lambda: found.strongest("L1H0", "O"),
        "to": lambda: found.strongest("L1H1"),
        "measure": lambda: found.strongest("L1H0", "V", measure="stripe"),
        "top": lambda: found.strongest("L1H0", top=0),
    }.items():
        with pytest.raises(interp.InputError, match=f"^{name} must"):
            ask()


@pytest.mark.parametrize("positions", ["absolute", "rotary"])
def test_in_the_hand_built_circuits_the_keys_alone_matter_and_one_head_in_them(positions):
    model = interp.build_circuit(positions, 100, 64)
    if positions == "absolute":
        previous, induction = Head(0, 3), Head(1, 5)
    else:
        previous, induction = Head(0, 1), Head(1, 2)
    found = path_effects(model, [induction], rows=3)
    for one in found.edges:
        assert one.stripe_before > 0.99
        if (one.source, one.path) == (previous, "K"):
            assert one.stripe_after < 0.01
            assert abs(one.effect_after) < 0.01 * one.effect_before
        else:
            assert one.change() == pytest.approx(0, abs=1e-3)
            assert one.effect_after == pytest.approx(one.effect_before, rel=SIZE)


@pytest.mark.parametrize("positions", ["absolute", "rotary"])
def test_without_its_previous_token_head_a_circuit_has_no_edge(positions):
    model = interp.build_circuit(positions, 100, 64, previous=False)
    to = Head(1, 5) if positions == "absolute" else Head(1, 2)
    found = path_effects(model, [to], rows=3)
    assert found.edges[0].stripe_before < 0.01
    for path in "QKV":
        assert changes(found, path).abs().max() < 1e-3


@pytest.mark.slow
@pytest.mark.real_model
def test_one_previous_token_head_feeds_the_real_induction_heads_through_their_keys(real_model):
    to = ["L17H3", "L17H4", "L18H6"]
    found = path_effects(real_model, to, rows=2)
    feeder, other = Head(16, 0), Head(11, 1)
    for head in map(Head.parse, to):
        (best,) = found.strongest(head)
        assert best.source == feeder
        assert best.stripe_before > 0.6
        assert best.stripe_after < 0.05
        for path in "QV":
            assert edge(found, feeder, head, path).change() > -0.2
        # As strong a previous-token head, and it feeds none of them.
        assert edge(found, other, head, "K").change() > -0.1
