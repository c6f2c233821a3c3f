"""Ablation maps, compared with plain hooks on models of transformers."""

import pandas as pd
import pytest
import torch
from hooked import difference, metric, prompts, whole, z_of
from tiny_models import tiny

import interp


@pytest.mark.parametrize("how", ["zero", "mean", "resample"])
def test_an_ablation_map_equals_plain_hooks(how):
    texts = prompts()[1][:2]
    model = tiny("llama")

    def new_z(_, row, layer):
        every = [z_of(model, "llama", ids, layer) for ids in texts]
        if how == "mean":
            return torch.cat([z[1:] for z in every]).mean(0).expand(9, 4, -1)
        return 0 * every[0] if how == "zero" else every[1 - row]

    changed = torch.zeros(2, 2, 4).double()
    for row, ids in enumerate(texts):
        for layer in range(2):
            new = new_z(model, row, layer)
            for head in range(4):

                def edit(z, head=head, new=new):
                    z[:, head] = new[:, head]

                changed[row, layer, head] = difference(model, "llama", row, ids, layer, edit)
    measure = metric("llama", slice(2))
    effects = interp.ablate(model, texts, measure, how=how)
    expected = changed.mean(0) - whole("llama", texts).mean()
    assert torch.allclose(torch.tensor(effects.matrix().to_numpy()), expected, atol=1e-4)
    assert expected.abs().max() > 0.05
    some = interp.ablate(model, texts, measure, ["L1H2", "L1H0"], how)
    frame = effects.to_frame().drop(columns=["random_low", "random_high"])
    pd.testing.assert_frame_equal(
        some.to_frame()[frame.columns],
        frame[frame["name"].isin(["L1H0", "L1H2"])].reset_index(drop=True),
    )


def test_what_cannot_be_replaced_is_refused():
    model, (clean, _) = interp.load_model(tiny("gpt2")), prompts()
    with pytest.raises(interp.InputError, match="how must be one of mean, zero, resample"):
        interp.ablate(model, clean, metric("gpt2"), how="half")
    with pytest.raises(interp.InputError, match=r"at least two of each length .* one of 6 tokens"):
        interp.ablate(model, clean, metric("gpt2"), how="resample")
