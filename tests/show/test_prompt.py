"""Prompts of patterns from any source: padding, batches, texts, directions, and what is refused."""

import numpy as np
import pytest
import torch
from paged import looking_across, looking_ahead, patterns_of
from tiny_models import tiny

import interp
from interp.errors import InputError
from interp.heads import Head
from interp.kinds.targets import NONE
from interp.patterns.read import take
from interp.show.prompt import LONGEST, one_prompt, prompts_of


def even(length):
    """One head that spreads its attention evenly."""
    return (torch.ones(length, length).tril() / torch.arange(1, length + 1)[:, None])[None]


def test_padding_on_either_side_is_cut_off():
    patterns = patterns_of()
    padded = torch.full((1, 40), NONE)
    padded[:, 3:28] = patterns.tokens
    wide = torch.zeros(3, 1, 3, 40, 40)
    wide[..., 3:28, 3:28] = patterns.as_subclass(torch.Tensor)
    (prompt,) = prompts_of(wide, padded)
    assert prompt.text.ids.tolist() == patterns.tokens[0].tolist()
    assert torch.equal(prompt.pattern(Head(1, 0)), patterns[1, 0, 0].as_subclass(torch.Tensor))


@pytest.mark.fault("B20")
@pytest.mark.parametrize("length", [4, 1])
def test_each_row_of_a_batch_is_a_prompt_and_one_must_be_chosen(length):
    batch = even(length).repeat(3, 1, 1, 1)
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [9, 1, 2, 3]])[:, :length]
    assert [prompt.text.ids.tolist() for prompt in prompts_of(batch, ids)] == ids.tolist()
    assert one_prompt(batch, tokens=ids, row=1).text.labels == [f"<{i}>" for i in ids[1].tolist()]
    for row in (None, 3, -1):
        with pytest.raises(InputError, match=r"^row must"):
            one_prompt(batch, tokens=ids, row=row)


@pytest.mark.fault("B57", "B58")
def test_a_prompt_knows_its_direction_and_its_other_text():
    (ahead,) = prompts_of(looking_ahead())
    assert not ahead.causal
    assert not ahead.hidden.any()
    wide = looking_across()[0]
    (across,) = prompts_of(wide)
    assert (len(across.text), len(across.across)) == wide.shape[-2:]
    with pytest.raises(InputError, match="causal=False"):
        list(prompts_of(looking_ahead().numpy(), looking_ahead().tokens))
    with pytest.raises(InputError, match=r"^patterns must be causal"):
        list(prompts_of(looking_ahead(), causal=True))


def sources(tmp_path):
    """The patterns of a model from every kind of source, each with its token ids."""
    model = tiny("gpt2")
    model.set_attn_implementation("eager")
    ids = torch.tensor([[5, 6, 7, 5, 6]])
    with torch.no_grad():
        output = model(ids, output_attentions=True)
    named = {f"layer{i}": layer[0].numpy() for i, layer in enumerate(output.attentions)}
    np.savez(tmp_path / "p.npz", **named, tokens=ids.numpy())
    cache = {f"blocks.{i}.attn.hook_pattern": layer for i, layer in enumerate(output.attentions)}
    patterns = interp.attention_patterns(model, ids)
    return patterns, {
        "a tuple": (output.attentions, ids),
        "a model's output": (output, ids),
        "numpy": (patterns.numpy(), ids.numpy()),
        "a cache": (cache, ids),
        "a mapping with its ids": ({**cache, "input_ids": ids}, None),
        "a file": (tmp_path / "p.npz", None),
        "several files": ([tmp_path / "p.npz", str(tmp_path / "p.npz")], None),
        "what was read": (take(tmp_path / "p.npz"), None),
    }


def test_patterns_of_every_source_are_the_same_prompt(tmp_path):
    patterns, every = sources(tmp_path)
    for name, (source, tokens) in every.items():
        prompts = list(prompts_of(source, tokens))
        assert len(prompts) == 1 + (name == "several files"), name
        for prompt in prompts:
            assert prompt.text.ids.tolist() == [5, 6, 7, 5, 6], name
            for layer, pattern in prompt.layers.items():
                assert (pattern - patterns[layer, 0]).abs().max() < 1e-5, name


THREE = {"patterns": even(3), "tokens": [1, 2, 3]}
REFUSED = {
    "texts too few": ("texts", {"texts": ["a", "b"]}),
    "texts that are no text": ("texts", {"texts": [1, 2, 3]}),
    "texts of another batch": ("texts", {"texts": [list("abc")] * 2}),
    "tokens too many": ("tokens", {"tokens": [1, 2, 3, 4]}),
    "no tokens": ("tokens", {"tokens": []}),
    "padding only": ("tokens", {"tokens": [NONE] * 3}),
    "no ids": ("tokens", {"tokens": None}),
    "no patterns": ("patterns", {"patterns": [], "tokens": None}),
    "scores before the softmax": ("patterns", {"patterns": 5 * even(3).log().clamp(min=-9)}),
    "heads summed": ("pattern rows", {"patterns": 3 * even(3)}),
    "a look ahead": ("patterns", {"patterns": even(3).flip(-1)}),
    "too long": ("patterns", {"patterns": even(LONGEST + 1), "tokens": range(LONGEST + 1)}),
    "layers of another number": ("layers", {"layers": [1, 2]}),
    "a layer twice": ("layers", {"patterns": even(3).repeat(2, 1, 1, 1, 1), "layers": [1, 1]}),
    "a whole that is shorter": ("whole", {"whole": 2}),
}


@pytest.mark.fault("B03", "B46")
@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_match_is_refused(case):
    argument, given = REFUSED[case]
    with pytest.raises(InputError, match=f"{argument} must"):
        one_prompt(**{**THREE, **given})


def test_a_missing_head_is_refused():
    with pytest.raises(InputError, match=r"^patterns must hold L0H4"):
        one_prompt(**THREE).pattern(Head(0, 4))
