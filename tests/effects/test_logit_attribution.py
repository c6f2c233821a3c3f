"""The parts of a logit, compared with the logits of transformers and with edited values."""

import numpy as np
import pandas as pd
import pytest
import torch
from hooked import answers, prompts
from tiny_models import tiny

import interp
from interp.effects.logit_attribution import LogitAttribution
from interp.weights.direct import logit_parts


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "bloom", "gptoss", "jamba"])
def test_parts_sum_to_the_logit_difference(family):
    texts, (right, wrong) = prompts()[0], answers(family)
    parts = interp.logit_attribution(tiny(family), texts, right, wrong)
    assert parts.error < 1e-4
    frame, expected = parts.to_frame(), []
    for ids, *pair in zip(texts, right, wrong):
        with torch.no_grad():
            logits = tiny(family)(torch.tensor([ids]), use_cache=False).logits[0, -1]
        if family == "gemma2":  # Before the cap.
            logits = 30 * (logits.double() / 30).atanh()
        expected.append(float(logits[pair[0]] - logits[pair[1]]))
    assert np.allclose(parts.total["logit"], expected, rtol=1e-3)
    assert np.allclose(frame.groupby("prompt")["effect"].sum(), parts.total["sum"], atol=1e-6)
    # By head it is what `logit_parts` gives without sources.
    ids = torch.tensor(texts[2:3])
    model = interp.load_model(tiny(family))
    both = (logit_parts(model, ids, torch.full_like(ids, each[2])) for each in (right, wrong))
    heads = torch.sub(*(each["heads"][:, 0, :, -1] for each in both))
    by_head = frame[(frame["part"] == "head") & (frame["prompt"] == 2)]
    assert by_head["source"].max() == 5
    table = by_head.pivot_table("effect", "layer", "head", aggfunc="sum")
    assert np.allclose(table, heads[[*table.index]], atol=1e-3)


def test_a_source_is_the_token_whose_value_matters():
    """Without the value of one token in one head of the last layer, its part is gone."""
    texts, right = prompts()[0][:2], answers("gpt2")[0][:2]
    model = tiny("gpt2")
    model.transformer.ln_f = torch.nn.Identity()  # Without norm and MLP the logit is linear.
    with torch.no_grad():
        model.transformer.h[1].mlp.c_proj.weight.zero_()
        before = model(torch.tensor(texts)).logits[:, -1]
        module = model.transformer.h[1].attn.c_attn

        def without(module, inputs, output):
            output = output.clone()
            output.unflatten(-1, (3, 4, 8))[:, 5, 2, 3] = 0
            return output

        handle = module.register_forward_hook(without)
        after = model(torch.tensor(texts)).logits[:, -1]
        handle.remove()
    change = (before - after) - (before - after).mean(-1, keepdim=True)
    frame = interp.logit_attribution(model, texts, right).to_frame()
    found = frame.query("part == 'head' and layer == 1 and head == 3 and source == 5")["effect"]
    assert np.allclose(found, change[torch.arange(2), right], atol=1e-4)
    assert found.abs().max() > 1e-2


def test_parts_are_saved_and_shown(tmp_path):
    texts, (right, wrong) = prompts()[0], answers("llama")
    parts = interp.logit_attribution(tiny("llama"), texts, right, wrong)
    parts.save(tmp_path / "parts.json")
    loaded = LogitAttribution.load(tmp_path / "parts.json")
    pd.testing.assert_frame_equal(loaded.to_frame(), parts.to_frame())
    pd.testing.assert_frame_equal(loaded.total, parts.total)
    top = loaded.heads().strongest(1).iloc[0]
    assert f"largest heads: {top['name']} {top['effect']:+.2f}" in repr(loaded)
    of_head = parts.to_frame().query(f"layer == {top['layer']} and head == {top['head']}")
    assert top["effect"] == pytest.approx(of_head["effect"].sum() / 4)
    with pytest.raises(interp.InputError, match="answers must be one for each prompt, got 3 for 4"):
        interp.logit_attribution(tiny("llama"), texts, right[:3])
