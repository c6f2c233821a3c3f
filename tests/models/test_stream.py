"""Scores from queries and keys equal those from patterns; a spoiled detail makes them differ."""

import pytest
import torch
import transformers
from families import own_patterns
from scored import scored
from tiny_models import GROUPED, SMALL, scaled, tiny, words_tokenizer
from torch.utils._python_dispatch import TorchDispatchMode

import interp
from interp.kinds import probes as tokens
from interp.kinds.mass import FromQK
from interp.kinds.scores import Thresholds
from interp.models.stream import stream, streams

THRESHOLDS = Thresholds()


def rows(model: interp.Model, padding: int) -> torch.Tensor:
    """Repeated rows, the second one cut short by `padding`."""
    ids = tokens.repeated(model.vocabulary, rows=2, length=64, bos=1, seed=0).tokens.clone()
    if padding:
        ids[1, -padding:] = -1
    return ids


def by_both(model: interp.Model, ids: torch.Tensor) -> list[tuple]:
    """Each layer's scores from queries and keys, and from the pattern."""
    from interp.models.hooks import run

    options = [
        {"special": model.special, "window": w, "thresholds": THRESHOLDS} for w in model.windows
    ]
    streamed, hooked = {}, {}
    stream(model, ids, lambda i, a: streamed.update({i: scored(a, ids, **options[i])}))
    run(model, ids, lambda i, p: hooked.update({i: scored(p, ids, **options[i])}))
    assert sorted(streamed) == sorted(hooked) == list(range(model.n_layers))
    return [(streamed[i], hooked[i]) for i in range(model.n_layers)]


def largest_difference(pairs: list[tuple]) -> float:
    worst = 0.0
    for ours, theirs in pairs:
        assert ours.tallies.keys() == theirs.tallies.keys()
        for name, tally in ours.tallies.items():
            other = theirs.tallies[name]
            assert torch.equal(tally.queries, other.queries)
            if tally.queries.sum():
                # Distances are in tokens, up to hundreds, so theirs is relative.
                size = other.mean.abs().clamp(min=1)
                worst = max(worst, ((tally.mean - other.mean) / size).abs().max().item())
                worst = max(worst, (tally.uniform_mean - other.uniform_mean).abs().max().item())
    return worst


ON_INTERFACE = ["llama", "mistral", "gemma2", "gptoss", "llama4"]
OFF_INTERFACE = ["bloom", "mpt", "falcon", "neo"]


@pytest.mark.parametrize("family", [*ON_INTERFACE, *OFF_INTERFACE])
def test_streaming_gives_the_scores_of_the_patterns(family):
    model = interp.load_model(tiny(family))
    assert streams(model)
    assert largest_difference(by_both(model, rows(model, padding=9))) < 1e-5


def sharpened(family: str, times: float) -> interp.Model:
    """A tiny model whose scores are so many times as large."""
    model = tiny(family)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "q_proj.weight" in name or "c_attn.weight" in name:
                weight[: 32 if "q_proj" in name else None, :32] *= times
    return interp.load_model(model)


@pytest.mark.fault("B38")
@pytest.mark.parametrize(
    ("family", "times"), [("gpt2", 1e4), ("llama", 1e10), ("gptoss", 1e10), ("gemma2", 1e4)]
)
def test_however_large_scores_are_attention_is_that_of_the_queries_and_keys(family, times):
    model = sharpened(family, times)
    ids = rows(model, 0)[:, :24]
    found = []

    def look(layer: int, attention: FromQK) -> None:
        q = attention.q.double().permute(0, 2, 3, 1, 4).flatten(1, 2)
        k = attention.k.double().repeat_interleave(q.shape[1] // attention.k.shape[2], 2)
        scores = q @ k.permute(0, 2, 3, 1) * attention.scale
        assert scores.abs().max() > 10 * times**0.5
        if attention.softcap is not None:
            scores = attention.softcap * torch.tanh(scores / attention.softcap)
        scores = scores.masked_fill(torch.ones(24, 24).triu(1).bool(), -torch.inf)
        if attention.window is not None:
            scores = scores.masked_fill(torch.ones(24, 24).tril(-attention.window).bool(), -1e300)
        if attention.sinks is not None:
            sinks = attention.sinks.double()[:, None, None].expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sinks], -1)
        everything = torch.arange(24).expand(2, 24, 24)
        expected = scores.softmax(-1)[..., :24]
        assert (attention.rows(everything[:, 0]) - expected).abs().max() < 2e-4
        assert (attention.mass(everything) - expected.sum(-1)).abs().max() < 2e-4
        assert attention.means().entropy.isfinite().all()
        found.append(layer)

    stream(model, ids, look)
    assert found == [0, 1]


@pytest.mark.fault("B38")
def test_scores_beyond_float64_are_refused_by_layer_and_head():
    model = sharpened("gpt2", 1e16)
    assert not streams(model)
    with pytest.raises(interp.InputError, match=r"resolve, got \S+ in layer 0, head \d"):
        stream(model, rows(model, 0), lambda layer, attention: None)


def test_where_there_is_no_float64_large_scores_are_refused(monkeypatch):
    monkeypatch.setattr("interp.models.stream.has_float64", lambda device: False)
    stream(sharpened("gpt2", 1), torch.tensor([[5, 6, 7]]), lambda layer, attention: None)
    with pytest.raises(interp.InputError, match="scores must"):
        stream(sharpened("gpt2", 1e6), torch.tensor([[5, 6, 7]]), lambda layer, attention: None)


SPOILED = {
    "scale forgotten": ("llama", {"scale": 1.0}),
    "window off by one": ("mistral", {"window": 5}),
    "soft-cap forgotten": ("gemma2", {"softcap": None}),
    "learned sinks forgotten": ("gptoss", {"sinks": None}),
    "chunks forgotten": ("llama4", {"window": None}),
    "ALiBi forgotten": ("mpt", {"slopes": None}),
}


@pytest.mark.parametrize("spoiled", SPOILED)
def test_a_forgotten_detail_changes_the_scores(spoiled, monkeypatch):
    family, changes = SPOILED[spoiled]
    original = FromQK.__init__

    def spoil(self, q, k, lse, scale, **options):
        original(self, q, k, lse, changes.get("scale", scale), **{**options, **changes_of(options)})

    def changes_of(options):
        return {name: value for name, value in changes.items() if name in options}

    # A cap so low that it bites.
    caps = {"attn_logit_softcapping": 2.0} if family == "gemma2" else {}
    model = interp.load_model(tiny(family, **caps))
    monkeypatch.setattr(FromQK, "__init__", spoil)
    assert largest_difference(by_both(model, rows(model, 0))) > 1e-3


def test_swapped_head_groups_change_the_scores(monkeypatch):
    model = interp.load_model(tiny("llama"))
    original = FromQK.__init__

    def swap(self, q, k, *rest, **options):
        original(self, q, k.flip(1), *rest, **options)

    monkeypatch.setattr(FromQK, "__init__", swap)
    assert largest_difference(by_both(model, rows(model, 0))) > 1e-3


@pytest.mark.parametrize("family", OFF_INTERFACE)
def test_off_the_interface_the_model_runs_as_before(family):
    model = interp.load_model(tiny(family, max_position_embeddings=64))
    ids = torch.arange(3, 23)[None]
    settings = str(vars(model.plain.config))
    streamed = []
    with torch.no_grad():
        logits = model.plain(ids).logits
        hidden = model.plain(ids, output_hidden_states=True).hidden_states[1]
    block = model.plain.base_model.get_submodule("blocks.0" if family == "mpt" else "h.0")
    with block.register_forward_hook(lambda module, inputs, out: streamed.append(out[0])):
        stream(model, ids, lambda layer, attention: None)
    assert torch.allclose(streamed[0], hidden, atol=1e-5 * hidden.abs().max())
    assert torch.equal(model.plain(ids).logits, logits)
    assert str(vars(model.plain.config)) == settings


@pytest.mark.parametrize(
    "options", [{"new_decoder_architecture": True}, {"multi_query": False, "num_kv_heads": 4}]
)
def test_each_layout_of_falcons_heads_is_read(options):
    config = transformers.FalconConfig(
        **{"vocab_size": 200, **SMALL, "num_kv_heads": 2, "max_position_embeddings": 64, **options}
    )
    inner = scaled(transformers.AutoModelForCausalLM.from_config(config))
    model, found = interp.load_model(inner), []
    assert streams(model)
    ids, queries = torch.arange(3, 23)[None], torch.arange(20)[None]
    stream(model, ids, lambda layer, attention: found.append(attention.rows(queries)))
    for ours, theirs in zip(found, own_patterns(inner, ids), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_bias_that_the_model_rounds_is_read_by_hooks(caplog):
    caplog.set_level("INFO", logger="interp")
    model = interp.load_model(tiny("bloom").bfloat16())
    assert interp.scan_heads(model, rows=1).made_by["method"] == "hooks"
    assert "cannot be streamed: reading patterns, one layer at a time" in caplog.text


def test_a_window_that_only_the_mask_has_is_found():
    config = transformers.PhimoeConfig(
        vocab_size=200, **GROUPED, sliding_window=4, num_local_experts=4, max_position_embeddings=64
    )
    model = interp.load_model(scaled(transformers.AutoModelForCausalLM.from_config(config)))
    windows = []
    stream(model, torch.arange(3, 23)[None], lambda layer, seen: windows.append(seen.window))
    assert windows == [4, 4]
    stream(model, torch.arange(3, 6)[None], lambda layer, seen: windows.append(seen.window))
    assert windows[2:] == [None, None]


def test_a_mask_of_another_kind_is_not_replaced(monkeypatch):
    where = "transformers.models.llama.modeling_llama.create_causal_mask"
    model = interp.load_model(tiny("llama"))
    monkeypatch.setattr(where, transformers.masking_utils.create_bidirectional_mask)
    assert not streams(model)


@pytest.mark.parametrize("where", ["class", "module"])
def test_an_attention_that_somebody_changed_is_not_replaced(where):
    inner = tiny("neo")
    module = inner.transformer.h[1].attn.attention

    class Turned(type(module)):
        def forward(self, x, **options):
            return super().forward(x.flip(-1), **options)

    if where == "class":
        module.__class__ = Turned
    else:
        module.forward = lambda x, **options: type(module).forward(module, x.flip(-1), **options)
    assert not streams(interp.load_model(inner))


def test_without_a_fused_kernel_tiles_give_the_same(monkeypatch, caplog):
    model = interp.load_model(tiny("llama"))
    fused = interp.scan_heads(model, rows=2, quick=True)
    caplog.set_level("INFO", logger="interp")
    assert "tiles" not in caplog.text
    monkeypatch.setattr("interp.models.stream.FUSED_ON", ())
    tiled = interp.scan_heads(model, rows=2, quick=True)
    assert "tiles" in caplog.text
    for kind in ("induction", "previous_token", "sink"):
        ours = torch.tensor(tiled.frame[kind].to_list())
        assert torch.allclose(ours, torch.tensor(fused.frame[kind].to_list()), atol=1e-5)


def test_streaming_is_the_default_and_the_result_says_so():
    model = interp.load_model(tiny("llama"), words_tokenizer())
    assert interp.scan_heads(model, rows=1).made_by["method"] == "stream"
    assert interp.scan_heads(model, rows=1, method="hooks").made_by["method"] == "hooks"
    with pytest.raises(interp.InputError, match="method must be one of stream, hooks, got 'fast'"):
        interp.scan_heads(model, rows=1, method="fast")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failing_visit_puts_the_models_attention_back(error):
    model = interp.load_model(tiny("llama"))
    before = model.plain.config._attn_implementation

    def fail(layer, attention):
        raise error

    with pytest.raises(error):
        stream(model, torch.tensor([[1, 5, 6]]), fail)
    assert model.plain.config._attn_implementation == before


def test_no_tensor_of_the_patterns_size_is_made():
    """At 512 tokens a pattern of 8 heads has 2 million entries."""
    model = interp.load_model(tiny("gpt2", n_positions=512, vocab_size=400, n_layer=1))
    probe = tokens.repeated(model.vocabulary, rows=1, length=512, bos=None, seed=0)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else [result]:
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.numel())
            return result

    def score(layer, attention):
        scored(
            attention,
            probe.tokens,
            counted=probe.parts["repeated"],
            thresholds=THRESHOLDS,
            statistics=False,
        )

    with Watch():
        stream(model, probe.tokens, score)
    assert 0 < largest < 4 * 512 * 512


def test_a_long_prompt_shows_how_induction_depends_on_the_distance():
    model = interp.load_model(tiny("llama", vocab_size=400, max_position_embeddings=260))
    scan = interp.scan_heads(model, rows=2, length=257)
    assert list(scan.by_distance()) == [32, 64, 128]
    assert not scan.frame["induction_at_128"].isna().to_numpy().any()


def test_distances_beyond_a_layers_window_are_missing_not_zero():
    model = interp.load_model(tiny("gemma2", vocab_size=400, max_position_embeddings=260))
    frame = interp.scan_heads(model, rows=1, length=257).frame
    assert frame.loc[frame["layer"] == 0, "induction_at_64"].isna().all()
    assert frame.loc[frame["layer"] == 1, "induction_at_64"].notna().all()


@pytest.mark.slow
@pytest.mark.real_model
def test_the_real_model_gives_the_same_scores_both_ways_at_1024_tokens(real_model):
    probe = tokens.repeated(real_model.vocabulary, rows=1, length=1024, bos=1, seed=0)
    assert largest_difference(by_both(real_model, probe.tokens)) < 1e-5
