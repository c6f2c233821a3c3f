"""Scores from queries and keys must be the scores from patterns; and must not, if spoiled."""

import pytest
import torch
import transformers
from scored import scored
from tiny_models import CONFIGS, tiny, words_tokenizer

import interp
from interp.kinds import probes as tokens
from interp.kinds.mass import FromPattern, FromQK, attention_mass, attention_mass_from_qk
from interp.kinds.scores import Thresholds
from interp.kinds.sinks import SAMPLE, spaced
from interp.models.stream import stream, streams

STREAMED = sorted(set(CONFIGS) - {"neo", "bloom"})
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


@pytest.mark.parametrize("padding", [0, 9])
@pytest.mark.parametrize("family", STREAMED)
def test_streaming_gives_the_scores_of_the_patterns(family, padding):
    model = interp.load_model(tiny(family))
    assert streams(model)
    assert largest_difference(by_both(model, rows(model, padding))) < 1e-5


def sharpened(family: str, times: float) -> interp.Model:
    """A tiny model whose scores are so many times as large."""
    model = tiny(family)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "q_proj.weight" in name or "c_attn.weight" in name:
                weight[: 32 if "q_proj" in name else None, :32] *= times
    return interp.load_model(model)


@pytest.mark.fault("B38")
@pytest.mark.parametrize("times", [1e4, 1e10])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gptoss", "gemma2"])
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


def test_scores_of_ten_million_are_shares_all_the_same():
    scan = interp.scan_heads(sharpened("gpt2", 1e7), rows=1, length=40, quick=True)
    assert scan.made_by["method"] == "stream"


@pytest.mark.fault("B38")
def test_scores_beyond_all_floating_point_are_named_by_layer_and_head():
    model = sharpened("gpt2", 1e16)
    assert not streams(model)
    with pytest.raises(interp.InputError, match=r"tell apart, got \S+ in layer 0, head \d"):
        stream(model, rows(model, 0), lambda layer, attention: None)


def test_where_there_is_no_float64_large_scores_are_refused(monkeypatch):
    monkeypatch.setattr("interp.models.stream.WITHOUT_FLOAT64", ("cpu",))
    stream(sharpened("gpt2", 1), torch.tensor([[5, 6, 7]]), lambda layer, attention: None)
    with pytest.raises(interp.InputError, match="tell apart"):
        stream(sharpened("gpt2", 1e6), torch.tensor([[5, 6, 7]]), lambda layer, attention: None)


def test_attention_within_blocks_is_read_by_hooks():
    settings = {
        **{"vocab_size": 200, "max_position_embeddings": 64, "num_hidden_layers": 2},
        **{"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
        **{"intermediate_size": 64, "intermediate_size_mlp": 64, "num_local_experts": 2},
        **{"attention_chunk_size": 16, "layer_types": ["chunked_attention"] * 2},
        **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2},
    }
    config = transformers.Llama4TextConfig(**settings)
    model = interp.load_model(transformers.AutoModelForCausalLM.from_config(config))
    assert not streams(model)
    assert interp.scan_heads(model, rows=1, quick=True).made_by["method"] == "hooks"


SPOILED = {
    "scale forgotten": ("llama", {"scale": 1.0}),
    "window off by one": ("mistral", {"window": 5}),
    "soft-cap forgotten": ("gemma2", {"softcap": None}),
    "learned sinks forgotten": ("gptoss", {"sinks": None}),
}


@pytest.mark.parametrize("spoiled", SPOILED)
def test_a_forgotten_detail_would_be_seen(spoiled, monkeypatch):
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


def test_swapped_head_groups_would_be_seen(monkeypatch):
    model = interp.load_model(tiny("llama"))
    original = FromQK.__init__

    def swap(self, q, k, *rest, **options):
        original(self, q, k.flip(1), *rest, **options)

    monkeypatch.setattr(FromQK, "__init__", swap)
    assert largest_difference(by_both(model, rows(model, 0))) > 1e-3


@pytest.mark.parametrize("family", ["neo", "bloom"])
def test_what_is_not_on_the_interface_is_read_by_hooks_and_says_so(family, caplog):
    caplog.set_level("INFO", logger="interp")
    scan = interp.scan_heads(tiny(family), rows=1)
    assert scan.made_by["method"] == "hooks"
    assert "cannot be streamed: reading patterns, one layer at a time" in caplog.text


def test_where_there_is_no_fused_kernel_tiles_give_the_same_and_it_is_said(monkeypatch, caplog):
    model = interp.load_model(tiny("llama"))
    fused = interp.scan_heads(model, rows=2, quick=True)
    caplog.set_level("INFO", logger="interp")
    assert "by tiles" not in caplog.text
    monkeypatch.setattr("interp.models.stream.FUSED_ON", ())
    tiled = interp.scan_heads(model, rows=2, quick=True)
    assert "no fused kernel gives log-sum-exps on cpu: attention goes by tiles" in caplog.text
    for kind in ("induction", "previous_token", "sink"):
        ours = torch.tensor(tiled.frame[kind].to_list())
        assert torch.allclose(ours, torch.tensor(fused.frame[kind].to_list()), atol=1e-5)


def test_a_bridge_made_elsewhere_is_read_by_hooks():
    model = interp.load_model(interp.load_model(tiny("gpt2")).bridge)
    assert model.plain is None
    assert interp.scan_heads(model, rows=1).made_by["method"] == "hooks"


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

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
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


def test_mass_from_queries_and_keys_is_mass_from_the_pattern():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, h, 40, 16, generator=generator) for h in (6, 2))
    scores = (0.5 * q @ k.repeat_interleave(3, 1).mT).masked_fill(
        torch.ones(40, 40).triu(1).bool(), -torch.inf
    )
    lse, pattern = scores.logsumexp(-1), scores.softmax(-1)
    keys = torch.randint(-1, 40, (2, 40, 3), generator=generator)
    keys = torch.where(keys > torch.arange(40)[:, None], -1, keys)
    ours = attention_mass_from_qk(q, k, lse, 0.5, keys)
    # float32 sums in another order.
    assert torch.allclose(ours, attention_mass(pattern, keys), atol=1e-5)
    near = torch.arange(40)[:, None] - torch.arange(8)
    near = torch.where(near < 0, -1, near).expand(2, -1, -1)
    ours = attention_mass_from_qk(q, k, lse, 0.5, near)
    assert torch.allclose(ours, attention_mass(pattern, near), atol=1e-5)


def test_products_beyond_float32_are_scaled_before_they_overflow():
    q, k = (torch.randn(1, 2, 9, 4, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    scores = (2 * q @ k.mT).masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    keys = torch.arange(9).expand(1, 9, 9)
    mass = attention_mass_from_qk(1e19 * q, 1e19 * k, scores.logsumexp(-1), 2e-38, keys)
    assert (mass - 1).abs().max() < 1e-5


EXACT = {
    "float32": (torch.float32, torch.float32, 1.0, {}),
    "bfloat16": (torch.bfloat16, torch.float32, 1.0, {}),
    "float16": (torch.float16, torch.float32, 1.0, {}),
    "scores of 1e4": (torch.float32, torch.float64, 1e4, {}),
    "scores of 1e8": (torch.float32, torch.float64, 123456789.0, {}),
    "soft-capped scores of 1e6": (torch.float32, torch.float64, 1e6, {"softcap": 30.0}),
    "soft-capped in bfloat16": (torch.bfloat16, torch.float64, 1e6, {"softcap": 30.0}),
}


@pytest.mark.parametrize(("dtype", "finest", "times", "caps"), EXACT.values(), ids=EXACT)
def test_mass_from_queries_and_keys_is_exact_in_every_format_at_every_scale(
    dtype, finest, times, caps
):
    generator = torch.Generator().manual_seed(0)
    q, k = (3 * torch.randn(1, 2, 60, 80, generator=generator).to(dtype) for _ in range(2))
    scale = times * 80**-0.5
    scores = scale * q.double() @ k.double().mT
    if caps:
        scores = 30 * torch.tanh(scores / 30)
    scores = scores.masked_fill(torch.ones(60, 60).triu(1) > 0, -torch.inf)
    keys = torch.randint(0, 60, (1, 60, 3), generator=generator)
    keys = torch.where(keys > torch.arange(60)[:, None], -1, keys)
    mass = attention_mass_from_qk(q, k, scores.logsumexp(-1).to(finest), scale, keys, **caps)
    # A float32 score of 60 is off by 4e-6.
    assert (mass - attention_mass(scores.softmax(-1), keys)).abs().max() < 2e-5


@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("cancels", [False, True])
def test_large_scores_are_refused_where_their_sum_was_made_in_float32(softcap, cancels):
    q, k = (torch.randn(1, 2, 9, 4, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    if cancels:  # Products of a million, and scores of nothing.
        q, k = torch.cat([1e3 * q, -1e3 * q], -1), torch.cat([1e3 * k, 1e3 * k], -1)
    else:
        q = 1e7 * q
    scores = q @ k.mT if softcap is None else softcap * torch.tanh(q @ k.mT / softcap)
    lse = scores.masked_fill(torch.ones(9, 9).triu(1) > 0, -torch.inf).logsumexp(-1)
    keys = torch.arange(9).expand(1, 9, 9)
    with pytest.raises(interp.InputError, match=r"lse must be float64.*beyond 1024, got .*float32"):
        attention_mass_from_qk(q, k, lse, 1.0, keys, softcap=softcap)


def test_rows_and_columns_from_queries_and_keys_are_the_patterns():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, h, 40, 16, generator=generator) for h in (6, 2))
    seen = torch.ones(40, 40).tril().triu(-8).bool()
    scores = (0.5 * q @ k.repeat_interleave(3, 1).mT).masked_fill(~seen, -torch.inf)
    two = FromQK(q, k, scores.logsumexp(-1), 0.5, window=9), FromPattern(scores.softmax(-1))
    queries = torch.tensor([[0, 3, 39], [7, 8, -1]])
    columns = torch.randint(-1, 40, (2, 6, 4), generator=generator)
    for ours, theirs in (
        [attention.rows(queries) for attention in two],
        [attention.on_columns(columns) for attention in two],
        [attention.means().entropy for attention in two],
        [attention.means().distance for attention in two],
    ):
        assert torch.allclose(ours, theirs, atol=2e-5)  # float32 sums in another order.


@pytest.mark.parametrize("pairs", [7, 10**6])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(lambda query: torch.stack([query - 30, query - 31], -1), id="far slices"),
        pytest.param(lambda query: torch.stack([query % 5, query // 2], -1), id="pairs"),
        pytest.param(lambda query: torch.stack([query + 1, query + 3], -1), id="the future"),
        pytest.param(lambda query: torch.stack([query, query], -1), id="twice the same"),
    ],
)
def test_any_keys_get_from_queries_and_keys_what_the_pattern_gives_them(
    pairs, window, keys, monkeypatch
):
    monkeypatch.setattr(FromQK, "PAIRS", pairs)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, h, 40, 16, generator=generator) for h in (6, 2))
    seen = torch.ones(40, 40).tril().triu(1 - (window or 40)).bool()
    scores = (0.5 * q @ k.repeat_interleave(3, 1).mT).masked_fill(~seen, -torch.inf)
    asked = keys(torch.arange(40)).expand(2, -1, -1)
    asked = torch.where((asked < 0) | (asked >= 40), -1, asked)
    ours = attention_mass_from_qk(q, k, scores.logsumexp(-1), 0.5, asked, window=window)
    theirs = attention_mass(scores.softmax(-1), asked)
    assert torch.allclose(ours, theirs, atol=1e-5)  # float32 sums in another order.


def test_spaced_queries_are_all_of_few_and_even_ones_of_many():
    counted = torch.zeros(2, 500, dtype=torch.bool)
    counted[0, 100:400] = True
    counted[1, [3, 5, 8]] = True
    chosen = spaced(counted, most=4)
    assert chosen.tolist() == [[100, 200, 299, 399], [3, 5, 8, -1]]
    assert spaced(counted).shape == (2, SAMPLE)


def test_a_long_prompt_shows_how_induction_depends_on_the_distance():
    model = interp.load_model(tiny("llama", vocab_size=400, max_position_embeddings=260))
    scan = interp.scan_heads(model, rows=2, length=257)
    assert list(scan.by_distance()) == [32, 64, 128]
    assert scan.frame["induction_at_128"].notna().all()
    assert set(scan.to_long()["score"]) >= {"induction_at_32", "induction_at_128"}
    assert interp.scan_heads(model, rows=1).by_distance() == {}


def test_distances_beyond_a_layers_window_are_missing_not_zero():
    model = interp.load_model(tiny("gemma2", vocab_size=400, max_position_embeddings=260))
    frame = interp.scan_heads(model, rows=1, length=257).frame
    assert frame.loc[frame["layer"] == 0, "induction_at_64"].isna().all()
    assert frame.loc[frame["layer"] == 1, "induction_at_64"].notna().all()


@pytest.mark.fault("B18")
def test_a_length_beyond_the_context_is_refused():
    message = "length must fit the model's context of 64 tokens, got 65"
    with pytest.raises(interp.InputError, match=message):
        interp.scan_heads(tiny("gpt2"), length=65)


@pytest.mark.real_model
def test_the_real_model_gives_the_same_scores_both_ways_at_1024_tokens(real_model):
    probe = tokens.repeated(real_model.vocabulary, rows=1, length=1024, bos=1, seed=0)
    assert largest_difference(by_both(real_model, probe.tokens)) < 1e-5
