"""Windows and layers as the model runs them, whatever its settings say."""

import pytest
import torch
import transformers
from tiny_models import ENDS, GROUPED, MIXED, SIZES, SMALL, made, named

import interp

IDS = torch.randint(3, 200, (32, 16), generator=torch.Generator().manual_seed(0))

MINIMAX = named(
    "MiniMax",
    **{**GROUPED, "num_hidden_layers": 4},
    num_local_experts=2,
    sliding_window=4,
    layer_types=["full_attention", "linear_attention"] * 2,
)
INKLING = named(
    "InklingText",
    **GROUPED,
    swa_num_attention_heads=4,
    swa_num_key_value_heads=2,
    swa_head_dim=8,
    sliding_window_size=4,
    rel_extent=8,
    layer_types=["hybrid_sliding", "hybrid"],
    mlp_layer_types=["dense", "dense"],
)
SINKS = named("GraniteSWA", **GROUPED, sliding_window=4)


@pytest.mark.parametrize(
    ("config", "windows"), [(MINIMAX, (4, None, 4, None)), (INKLING, (4, None))]
)
def test_windows_are_those_that_the_zeros_show_where_settings_say_otherwise(config, windows):
    model = interp.load_model(made(config(), **ENDS))
    assert model.windows == windows
    found = interp.attention_patterns(model, IDS)
    for layer, pattern in zip(found.layers, found, strict=True):
        reach = windows[layer] or 16
        expected = torch.ones(16, 16).tril().triu(1 - reach) > 0
        assert torch.equal((pattern > 0).any(0).any(0), expected)


def test_a_mask_that_is_no_window_is_refused(monkeypatch):
    model = made(named("Llama", **GROUPED)(), **ENDS)
    mask = transformers.masking_utils.create_causal_mask

    def odd(**options):
        return mask(**options, and_mask_function=lambda b, h, q, k: (q - k) % 2 == 0)

    monkeypatch.setattr("transformers.models.llama.modeling_llama.create_causal_mask", odd)
    with pytest.raises(interp.InputError, match="got another mask in layer 0"):
        interp.load_model(model)


def test_a_decoder_alone_has_its_own_layers_and_heads():
    config = transformers.BartConfig(
        **SIZES,
        d_model=32,
        encoder_layers=1,
        encoder_attention_heads=2,
        decoder_layers=3,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
    )
    source = made(config, **ENDS)
    model = interp.load_model(source)
    assert (model.n_layers, model.n_heads) == (3, 4)
    found = interp.attention_patterns(model, IDS)
    source.set_attn_implementation("eager")
    with torch.no_grad():
        own = source(IDS, output_attentions=True, use_cache=False).attentions
    assert torch.allclose(found, torch.stack(own), atol=1e-6)
    assert len(interp.scan_heads(model, rows=1, quick=True).frame) == 12


def test_layers_that_run_again_and_again_are_refused():
    model = interp.load_model(made(named("HrmText", **SMALL, head_dim=8)(), **ENDS))
    with pytest.raises(interp.InputError, match="computed once in a layer, got again in 0"):
        interp.attention_patterns(model, IDS)
    with pytest.raises(interp.InputError, match="computed once in a layer"):
        interp.scan_heads(model, rows=1)


def test_attention_without_the_share_of_learned_sinks_is_refused():
    model = interp.load_model(made(SINKS(), **ENDS))
    with pytest.raises(interp.InputError, match="its learned sinks have a share of"):
        interp.attention_patterns(model, IDS)
    assert len(interp.scan_heads(model, rows=1, quick=True).frame) == 8


def test_layers_have_learned_sinks_one_by_one():
    config = named("MiMoV2Flash", **GROUPED, sliding_window=4, layer_types=MIXED[::-1])
    sizes = {f"swa_{name}": GROUPED[name] for name in ("num_attention_heads", "head_dim")}
    model = interp.load_model(made(config(), **ENDS, **sizes))
    assert model.kinds == ("full", "window 4, learned sinks")
    sums = interp.attention_patterns(model, IDS)[:, :, :, 0].sum(-1)
    assert (sums[0] == 1).all()
    assert (sums[1] < 1).all()


def test_composition_through_norms_in_the_stream_is_refused():
    model = made(MINIMAX(), **ENDS)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight += torch.linspace(0, 1, len(weight))
    with pytest.raises(
        interp.InputError, match="such as a norm, changes before layer 2 of MiniMax"
    ):
        interp.composition_scores(model)
