"""Patterns of any source through one way in, and what is refused there."""

import copy
import pickle
import pydoc
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from tiny_models import tiny
from two_layers import HEADS, IDS, LABELS, LENGTH, STACK, planted

import interp
from interp.errors import InputError
from interp.kinds.targets import NONE
from interp.patterns.read import layer_number, take
from interp.patterns.tensor import AttentionPatterns
from interp.scan.given import SHOWN, first_prompt, scan_given


def labels(source: Any, tokens: Any = None, **options: Any) -> list[str]:
    """Labels straight from the source, which are those of what `read_patterns` makes of it."""
    verdicts = interp.classify_heads(source, tokens, **options)
    read = interp.read_patterns(source, tokens)
    again = interp.classify_heads(read)
    assert [v.labels for v in again] == [v.labels for v in verdicts]
    assert [v.head for v in again] == [v.head for v in verdicts]
    return [verdict.label for verdict in verdicts]


# Files.


def test_an_npy_file_is_read_with_its_tokens_in_any_kind_of_file(tmp_path):
    np.save(tmp_path / "p.npy", STACK.numpy())
    np.save(tmp_path / "t.npy", np.array(IDS))
    np.savez(tmp_path / "t.npz", input_ids=np.array([IDS]))
    safetensors.torch.save_file({"tokens": torch.tensor(IDS)}, tmp_path / "t.safetensors")
    (tmp_path / "t.json").write_text(str(IDS))
    (tmp_path / "one_line.txt").write_text(", ".join(map(str, IDS)))
    (tmp_path / "one_each.txt").write_text("\n".join(map(str, IDS)) + "\n")
    names = ["t.npy", "t.npz", "t.safetensors", "t.json", "one_line.txt", "one_each.txt"]
    for name in names:
        assert labels(tmp_path / "p.npy", tmp_path / name) == LABELS, name
    assert labels(str(tmp_path / "p.npy"), IDS) == LABELS


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize("name", ["layer{}", "{}", "blocks.{}.attn.hook_pattern"])
def test_layers_by_name_come_by_number_and_keep_it(ending, name, tmp_path):
    arrays = {name.format(10): STACK[1], name.format(9): STACK[0], name.format(11): STACK[0]}
    path = tmp_path / f"p.{ending}"
    if ending == "npz":
        np.savez(path, tokens=np.array(IDS), **{n: a.numpy() for n, a in arrays.items()})
    else:
        tensors = {n: a.clone() for n, a in arrays.items()}
        safetensors.torch.save_file({**tensors, "input_ids": torch.tensor([IDS])}, path)
    assert labels(path) == [*LABELS, *LABELS[:2]]
    heads = [str(verdict.head) for verdict in interp.classify_heads(path)]
    assert heads == ["L9H0", "L9H1", "L10H0", "L10H1", "L11H0", "L11H1"]
    assert interp.read_patterns(path).layers == (9, 10, 11)


@pytest.mark.parametrize("shape", ["[layer, ...]", "[batch, ...]", "[head, ...]", "unnamed"])
def test_an_archive_of_one_array_is_all_layers(shape, tmp_path):
    array = {"[layer, ...]": STACK, "[batch, ...]": HEADS, "[head, ...]": HEADS[0]}.get(
        shape, STACK
    )
    name = "arr_0" if shape == "unnamed" else "patterns"
    np.savez(tmp_path / "p.npz", **{name: array.numpy(), "tokens": np.array(IDS)})
    assert labels(tmp_path / "p.npz") == (LABELS if array.ndim == 5 else LABELS[:2])


@pytest.mark.fault("B13", "B41")
def test_half_precision_files_are_read_as_they_are(tmp_path):
    stack = STACK.bfloat16()
    safetensors.torch.save_file(
        {"patterns": stack, "tokens": torch.tensor(IDS)}, tmp_path / "p.safetensors"
    )
    assert labels(tmp_path / "p.safetensors") == LABELS
    np.save(tmp_path / "p.npy", STACK.half().numpy())
    assert labels(tmp_path / "p.npy", IDS) == LABELS
    read = interp.read_patterns(tmp_path / "p.npy", IDS)
    assert read.dtype == torch.float32
    assert torch.equal(read, STACK)


def test_a_layer_of_an_npy_file_is_read_when_it_is_looked_at(tmp_path):
    np.save(tmp_path / "p.npy", STACK.numpy())
    layers = take(tmp_path / "p.npy", IDS).arrays
    # What changes in the file afterwards is seen: nothing had been copied.
    np.lib.format.open_memmap(tmp_path / "p.npy", mode="r+")[1] = 0
    assert torch.equal(layers[0], STACK[0])
    assert not layers[1].any()


class Trap:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: Any) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


@pytest.mark.parametrize("ending", ["npy", "npz", "a pickle named npy"])
def test_python_objects_in_a_file_are_refused_and_never_made(ending, tmp_path):
    trap = np.array([Trap(tmp_path / "sprung")], dtype=object)
    path = tmp_path / ("p.npz" if ending == "npz" else "p.npy")
    if ending == "npz":
        np.savez(path, patterns=trap)
    elif ending == "npy":
        np.save(path, trap, allow_pickle=True)
    else:
        path.write_bytes(pickle.dumps(trap))
    for arguments in ((path, IDS), (STACK, path)):
        with pytest.raises(InputError, match="must be a file of"):
            interp.read_patterns(*arguments)
    assert not (tmp_path / "sprung").exists()


def test_a_damaged_file_is_refused_in_one_line_wherever_it_ends(tmp_path):
    np.savez(tmp_path / "p.npz", patterns=HEADS[:, :1, :4, :4].numpy(), tokens=np.array(IDS[:4]))
    np.save(tmp_path / "p.npy", HEADS[:, :1, :4, :4].numpy())
    tensors = {"patterns": HEADS[:, :1, :4, :4].contiguous()}
    safetensors.torch.save_file(tensors, tmp_path / "p.safetensors")
    for name in ("p.npz", "p.npy", "p.safetensors"):
        whole = (tmp_path / name).read_bytes()
        for end in range(0, len(whole), 7):
            (tmp_path / name).write_bytes(whole[:end])
            with pytest.raises(InputError, match="must be a file of patterns") as caught:
                interp.read_patterns(tmp_path / name, IDS[:4])
            assert "\n" not in str(caught.value)


def test_what_is_no_file_of_arrays_or_ids_is_refused(tmp_path):
    (tmp_path / "t.txt").write_text("1 2 three")
    (tmp_path / "t.json").write_text('{"a": [1], "b": [2]}')
    with pytest.raises(InputError, match=r"patterns must be .* \(.npy, .npz, .safetensors\)"):
        interp.read_patterns("p.pt", IDS)
    for tokens in ("missing.json", "a" * 5000 + ".npy", tmp_path / "t.txt", tmp_path / "t.json"):
        with pytest.raises(InputError, match="tokens"):
            interp.read_patterns(STACK, tokens)


# Arrays of every make.


ARRAYS = {
    "float64": lambda a: a.astype(np.float64),
    "the other byte order": lambda a: a.astype(">f4"),
    "read only": lambda a: np.frombuffer(a.tobytes(), np.float32).reshape(a.shape),
    "backwards in memory": lambda a: a[:, :, ::-1].copy()[:, :, ::-1],
    "columns first": lambda a: np.asfortranarray(a),
    "proxies": lambda a: SimpleNamespace(value=torch.from_numpy(a)),
    "a list of proxies": lambda a: [SimpleNamespace(value=torch.from_numpy(x)) for x in a],
    "a mapping by number": lambda a: {1: a[1], 0: a[0]},
    "all layers by one name": lambda a: {"attentions": tuple(torch.from_numpy(a))},
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_arrays_of_every_make_give_the_same_labels_and_stay_as_they_were(make):
    array = STACK.numpy().copy()
    assert labels(make(array), IDS) == LABELS
    assert labels(make(array), np.array(IDS, dtype=">i8")) == LABELS
    assert np.array_equal(array, STACK.numpy())


def test_what_is_read_is_a_copy_that_knows_its_tokens_and_no_texts():
    source = STACK.clone()
    read = interp.read_patterns(source, IDS)
    source[:] = 0
    assert torch.equal(read, STACK)
    assert read.tokens.tolist() == [IDS]
    assert read.texts[0][:2] == ["<3>", "<10>"]
    assert (read.layers, read.learned_sinks) == ((0, 1), False)


def test_a_column_of_pandas_is_an_array_and_a_table_of_it_goes_by_name():
    table = pd.DataFrame({"input_ids": IDS, "other": 0})
    assert labels(STACK, table["input_ids"]) == labels(STACK, table) == LABELS


@pytest.mark.fault("B36")
def test_a_tokenizers_mask_says_what_is_padding_on_either_side():
    wide = torch.full((2, 1, 2, LENGTH + 3, LENGTH + 3), 1 / (LENGTH + 3))
    wide[:, :, :, 3:, :3] = 0
    wide[:, :, :, 3:, 3:] = STACK
    mask = [[0] * 3 + [1] * LENGTH]
    tokens = {"input_ids": [[2] * 3 + IDS], "attention_mask": mask}
    assert labels(wide, tokens) == LABELS
    assert (
        labels(wide, {"input_ids": tokens["input_ids"][0], "attention_mask": np.array(mask[0]) > 0})
        == LABELS
    )
    with pytest.raises(InputError, match=r"attention_mask must be of the tokens' shape \(1, 24\)"):
        interp.read_patterns(wide, {**tokens, "attention_mask": [[1] * LENGTH]})
    read = interp.read_patterns(wide, tokens)
    assert read.tokens[0, :4].tolist() == [NONE, NONE, NONE, 3]
    assert not read[..., :3, :].any()


@pytest.mark.fault("B55")
def test_learned_sinks_are_an_option_of_reading_too(tmp_path):
    np.save(tmp_path / "p.npy", 0.3 * STACK.numpy())
    with pytest.raises(InputError, match=r"sum to 1, got 0\.3 in layer 0, head 0, query 0"):
        interp.read_patterns(tmp_path / "p.npy", IDS)
    read = interp.read_patterns(tmp_path / "p.npy", IDS, learned_sinks=True)
    assert read.learned_sinks
    scores = [verdict.scores for verdict in interp.classify_heads(read)]
    # Shares of all attention, what went to no key among it.
    assert scores[0]["previous_token"] == pytest.approx(0.3)
    assert scores[1]["induction"] == pytest.approx(0.3)


# Buffers of fixed size.


@pytest.mark.fault("B91")
def test_a_buffer_that_is_0_beyond_the_tokens_gives_the_same_numbers():
    pattern = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)).tril()
    pattern /= pattern.sum(-1, keepdim=True)
    tokens = [3, *range(10, 18), *range(10, 17)]
    buffer = torch.zeros(1, 3, 128, 128)
    buffer[..., :16, :16] = pattern
    for wide in (buffer, buffer[..., :16, :]):
        assert interp.classify_heads(wide, tokens) == interp.classify_heads(pattern, tokens)
        assert torch.equal(interp.read_patterns(wide, tokens)[0], pattern)
    buffer[0, 1, 99, 5] = 1
    with pytest.raises(InputError, match="tokens must match the patterns"):
        interp.classify_heads(buffer, tokens)


# Names.


NAMES = {
    "layer10": 10,
    "layers.3": 3,
    "L3": 3,
    "arr_2": 2,
    "model.layers.7.self_attn": 7,
    "transformer.h.1.attn": 1,
    "attn_weights_4": 4,
    5: 5,
    "blocks.0.atn.hook_pattern": None,
    "blocks.0.attn.hook_attn_scores": None,
    "L5H1": None,
    "layer-1": None,
    "layers": None,
    -1: None,
    True: None,
}


@pytest.mark.parametrize(("name", "number"), NAMES.items(), ids=map(str, NAMES))
def test_a_layers_name_is_its_words_and_one_number(name, number):
    assert layer_number(name) == number


UNKNOWN = {
    "a typing error": ({"blocks.0.atn.hook_pattern": HEADS}, r"got \['blocks.0.atn.hook_pattern"),
    "one of a file": ({"layer0": HEADS, "lyaer1": HEADS}, r"got \['lyaer1'\]"),
    "nothing": ({}, "patterns must be named by layer"),
    "one layer twice": ({"layer1": HEADS, "1": HEADS}, "one array a layer"),
    "a number beyond any": ({"layer99999999999999999999": HEADS}, "must be named by layer"),
}


@pytest.mark.fault("B34")
@pytest.mark.parametrize(("source", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_names_that_match_no_layer_are_refused(source, message):
    with pytest.raises(InputError, match=message):
        interp.read_patterns(source, IDS)


def test_a_cache_may_hold_all_else_beside_its_patterns():
    cache = {"blocks.2.attn.hook_pattern": STACK[1], "blocks.0.attn.hook_pattern": STACK[0]}
    cache |= {"blocks.0.hook_resid_pre": torch.zeros(1, LENGTH, 8), "hook_embed": torch.zeros(1)}
    assert labels(cache, IDS) == LABELS
    assert interp.read_patterns(cache, IDS).layers == (0, 2)


# What libraries return.


def loaded(family: str, attention: str = "eager") -> Any:
    model = tiny(family)
    model.set_attn_implementation(attention)
    return model


PROMPT = torch.tensor([[3, *range(10, 16), *range(10, 16)]])


@pytest.mark.fault("B01")
def test_what_a_transformers_model_returns_is_read_and_its_tuple_too():
    output = loaded("llama")(PROMPT, output_attentions=True)
    read = interp.read_patterns(output, PROMPT)
    assert torch.equal(read, torch.stack(output.attentions))
    assert torch.equal(interp.read_patterns(output.attentions, PROMPT), read)
    assert torch.equal(interp.attention_patterns(tiny("llama"), PROMPT), read)


@pytest.mark.fault("B01")
@pytest.mark.filterwarnings("ignore")
def test_what_a_fused_kernel_returns_is_explained_by_the_setting_to_change():
    model = loaded("llama", "sdpa")
    fused = model(PROMPT, output_attentions=True)
    generated = model.generate(
        PROMPT, max_new_tokens=2, output_attentions=True, return_dict_in_generate=True
    )
    nothing = [fused, fused.attentions, (None, None), ((None,), (None,)), model(PROMPT), generated]
    for source in nothing:
        for read in (interp.read_patterns, interp.classify_heads):
            with pytest.raises(InputError, match='attn_implementation="eager" and call it with'):
                read(source, PROMPT)


def test_an_encoder_decoders_kinds_are_asked_for_by_name():
    output = OrderedDict(
        decoder_attentions=(HEADS,), cross_attentions=(HEADS,), encoder_attentions=(HEADS,)
    )
    with pytest.raises(InputError, match="patterns must be of one stack") as caught:
        interp.classify_heads(output, IDS)
    for name in output:
        assert name in str(caught.value)
    assert labels(output["decoder_attentions"], IDS) == LABELS[:2]


@pytest.mark.fault("B44")
@pytest.mark.parametrize("cache", ["growing", "of fixed size", "none"])
def test_what_generation_returns_is_the_attention_of_one_plain_run(cache):
    model = loaded("llama")
    options = {"growing": {}, "of fixed size": {"cache_implementation": "static"}}
    output = model.generate(
        PROMPT,
        max_new_tokens=5,
        min_new_tokens=5,
        do_sample=False,
        output_attentions=True,
        return_dict_in_generate=True,
        **options.get(cache, {"use_cache": False}),
    )
    plain = model(output.sequences[:, :-1], output_attentions=True)
    ran = output.sequences[:, :-1]
    for source, tokens in (
        (output, None),
        (output.attentions, ran),
        (output.attentions, output.sequences),
    ):
        read = interp.read_patterns(source, tokens)
        # Float32 sums in another order with a cache.
        torch.testing.assert_close(
            read.as_subclass(torch.Tensor), torch.stack(plain.attentions), rtol=0, atol=1e-5
        )
        assert not read.triu(1).any()
        assert torch.equal(read.tokens, ran)
    interp.classify_heads(output)


@pytest.mark.fault("B44")
def test_generation_whose_rows_do_not_grow_by_one_is_refused():
    square, row = torch.eye(4)[None, None], torch.eye(6)[None, None, 4:5, :5]
    assert interp.read_patterns([[square], [row]], [1, 2, 3, 4, 5]).shape == (1, 1, 1, 5, 5)
    wide = row.expand(2, -1, -1, -1)
    for broken in ([[square], [row[..., 1:]]], [[square], [row], [row]], [[square], [wide]]):
        with pytest.raises(InputError, match=r"must grow by one key a step, .* run the model once"):
            interp.read_patterns(broken, [1, 2, 3, 4, 5])
    with pytest.raises(InputError, match="all layers at each step"):
        interp.read_patterns([[square], [row, row]], [1, 2, 3, 4, 5])


@pytest.mark.fault("B44")
def test_generation_that_attends_to_what_is_yet_to_come_is_refused():
    square, row = torch.eye(4)[None, None], torch.eye(6)[None, None, 4:5]
    assert interp.read_patterns([[square], [row]], [1, 2, 3, 4, 5]).shape == (1, 1, 1, 5, 5)
    with pytest.raises(InputError, match=r"must be 0 after token 5, .* at step 1 of layer 0"):
        interp.read_patterns([[square], [row.roll(1, -1)]], [1, 2, 3, 4, 5])


@pytest.mark.fault("B44")
def test_a_beam_search_is_refused():
    output = loaded("llama").generate(
        PROMPT, max_new_tokens=2, num_beams=2, output_attentions=True, return_dict_in_generate=True
    )
    with pytest.raises(InputError, match="got a beam search"):
        interp.classify_heads(output)


def test_a_transformer_lens_cache_is_read_as_hooks_read_the_model():
    model = interp.load_model(tiny("gpt2"))
    for batch_axis in (True, False):
        _, cache = model.bridge.run_with_cache(PROMPT, remove_batch_dim=not batch_axis)
        read = interp.read_patterns(cache, PROMPT)
        assert torch.allclose(read, interp.attention_patterns(model, PROMPT), atol=1e-6)


def test_patterns_that_were_read_before_keep_what_they_know_of_themselves():
    ahead = planted("previous").flip(0, 1)[None, None]
    with pytest.raises(InputError, match="give causal=False"):
        interp.read_patterns(ahead, IDS)
    first = interp.read_patterns(0.5 * ahead, IDS, learned_sinks=True, causal=False)
    first.special, first.texts = frozenset({3}), [[f"w{i}" for i in IDS]]
    again = interp.read_patterns(first)
    assert torch.equal(again, first)
    for name in ("layers", "texts", "learned_sinks", "causal", "windows", "special", "stack"):
        assert getattr(again, name) == getattr(first, name)
    assert interp.classify_heads(first)[0].label == "next token"


@pytest.mark.fault("B32")
def test_setting_the_attention_by_hand_after_loading_gives_the_same_real_patterns():
    model, untouched = tiny("llama"), tiny("llama")
    assert model.config._attn_implementation != "eager"
    model.config._attn_implementation = "eager"
    patterns = interp.attention_patterns(model, PROMPT)
    assert torch.equal(patterns, interp.attention_patterns(untouched, PROMPT))
    assert torch.equal(
        patterns, interp.read_patterns(model(PROMPT, output_attentions=True), PROMPT)
    )
    assert model.config._attn_implementation == "eager"


@pytest.mark.fault("B13")
def test_the_number_format_of_the_file_is_recorded(tmp_path):
    path = tmp_path / "p.safetensors"
    safetensors.torch.save_file({"layer3": HEADS.bfloat16(), "tokens": torch.tensor(IDS)}, path)
    scan = scan_given(take(path), path)
    assert scan.made_by["dtype"] == "bfloat16"
    assert scan.frame["label"].tolist() == LABELS[:2]
    assert scan.frame["name"].tolist() == ["L3H0", "L3H1"]


@pytest.mark.fault("B93")
def test_one_token_keeps_every_axis(tmp_path):
    np.save(tmp_path / "p.npy", np.ones((3, 1, 1)))
    for source in (tmp_path / "p.npy", torch.ones(1, 1, 3, 1, 1), (torch.ones(1, 3, 1, 1),)):
        assert interp.read_patterns(source, [5]).shape == (1, 1, 3, 1, 1)
        assert {v.label for v in interp.classify_heads(source, [5])} == {"not enough tokens"}


def test_a_prompt_of_many_tokens_is_drawn_by_its_first_ones_behind_the_padding():
    length = SHOWN + 40
    tokens = torch.tensor([[NONE, NONE, *range(length)], [*range(length + 2)]])
    stack = torch.zeros(1, 2, 1, length + 2, length + 2)
    stack[0, 0, 0, 2:, 2:] = planted("previous", length)
    stack[0, 1, 0] = planted("previous", length + 2)
    shown = first_prompt(take(stack, tokens))
    assert shown.tokens.tolist() == [list(range(SHOWN))]
    assert torch.equal(shown.arrays[0][0, 0], planted("previous", SHOWN))


def test_attention_that_looks_ahead_is_read_whole_before_its_first_tokens_are_drawn():
    length = SHOWN + 40
    tokens = torch.tensor([[NONE, *range(length), NONE]])
    even = torch.zeros(1, 1, 1, length + 2, length + 2)
    even[..., 1:-1, 1:-1] = 1 / length
    shown = first_prompt(take(even, tokens), causal=False)
    assert shown.tokens.tolist() == [list(range(SHOWN))]
    assert shown.arrays[0].shape == (1, 1, SHOWN, SHOWN)
    assert (shown.arrays[0] == 1 / length).all()


@pytest.mark.fault("B33", "B34")
def test_a_layer_whose_attention_goes_past_its_hook_is_reported():
    class Elsewhere(torch.nn.Module):
        def forward(self, stream: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
            return torch.zeros_like(stream), None

    model = interp.load_model(tiny("gpt2"))
    interp.attention_patterns(model, PROMPT)
    model.plain.transformer.h[1].attn = Elsewhere()
    with pytest.raises(InputError, match=r"layers \[1\]"):
        interp.attention_patterns(model, PROMPT)


def test_help_shows_what_patterns_know_and_an_instance_keeps_all_of_torch():
    patterns = interp.read_patterns(torch.eye(2)[None], [1, 2])
    lines = pydoc.render_doc(type(patterns)).splitlines()
    assert len(lines) <= 100
    assert any("tokens" in line for line in lines)
    assert {*dir(torch.Tensor), "tokens", "beginning"} <= {*dir(patterns)}


def test_layers_are_told_by_number_and_prompts_by_length_where_they_are_not_alike():
    layers = {f"layer{i}": torch.eye(5).expand(2, 4, 5, 5) for i in (2, 3, 4, 9, 11)}
    patterns = interp.read_patterns(layers, [[1, 2, 3, 4, 5], [1, 2, 3, -1, -1]])
    assert repr(patterns) == (
        "AttentionPatterns(5 layers [2, 3, 4, 9, 11] of 4 heads, 2 prompts of 3 to 5 tokens,"
        " float32, cpu)"
    )
    assert repr(copy.deepcopy(patterns)) == f"{patterns}" == repr(patterns)
    assert repr(patterns.beginning(2)).endswith("2 prompts of 2 tokens, float32, cpu)")
    many = {f"layer{2 * i + 1}": torch.ones(1, 1, 1) for i in range(100)}
    assert len(repr(interp.read_patterns(many, [1]))) < 200


def test_what_is_taken_from_patterns_shows_its_numbers():
    patterns = interp.read_patterns(torch.eye(2)[None], [1, 2])
    assert repr(patterns[0]) == repr(patterns.as_subclass(torch.Tensor)[0])
    unsaid = torch.zeros(1, 1, 1, 1, 1).as_subclass(AttentionPatterns)
    assert repr(unsaid) == "AttentionPatterns([[[[[0.]]]]])"
    with pytest.raises(AssertionError, match=r"Greatest absolute difference: 1\.0"):
        torch.testing.assert_close(patterns, patterns + 1)


def test_ids_that_contradict_those_of_the_patterns_are_refused():
    pattern, ids, others = torch.eye(4)[None, None], [1, 2, 3, 4], [1, 2, 3, 5]
    read = interp.read_patterns(pattern, ids)
    for source in (read, take(pattern, ids), {"layer0": pattern, "input_ids": ids}):
        with pytest.raises(InputError, match="must be the same as those that came with the patt"):
            interp.read_patterns(source, others)
        assert interp.read_patterns(source, ids).tokens.tolist() == [ids]
        assert interp.read_patterns(source, [1, 2, 3, NONE]).tokens.tolist() == [[1, 2, 3, NONE]]
    with pytest.raises(InputError, match="tokens must be the same as the input_ids"):
        interp.read_patterns({"layer0": pattern, "tokens": ids, "input_ids": others})
