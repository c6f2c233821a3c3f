"""Codes for tokens and for places: many vectors in few dimensions, no two much alike.

A head compares queries and keys in d_head dimensions, and there are more tokens than that. So
each token is written as a *code word* of N = 2^bits - 1 signs, divided by sqrt(N): a Gold code.
Let x run over the N nonzero elements of the field with 2^bits elements, and let Tr be its trace,
one bit. The word of a pair (a, b) of field elements is

    word(a, b)[x] = (-1)^Tr(a x^3 + b x) / sqrt(N)

Two words differ by a word, and the sum of any such word's signs over the whole field, x = 0
included, is 0 or within 2^(bits // 2 + 1) of it (Gold 1967 for odd `bits`; MacWilliams and
Sloane 1977, chapter 15, for even). Hence, x = 0 left out, for any two different words

    -(2^(bits // 2 + 1) + 1) / N  <=  word . word'  <=  (2^(bits // 2 + 1) - 1) / N

and exactly -1 / N where the `a` are the same. A test counts this out for all words.

Places are written as cosines and sines of a few frequencies w_k, with weights c_k that sum to 1.
Then the product of two places depends on their distance alone: the kernel

    place_i . place_j = kernel(i - j) = sum_k c_k cos(w_k (i - j))
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

_RECURRENCE = {5: (0, 2), 6: (0, 1), 7: (0, 1), 8: (0, 2, 3, 4)}
"""Powers below x^bits in a primitive polynomial: s[i + bits] is the sum of those s[i + power]."""


def token_words(bits: int, number: int, generator: Generator) -> Float[Tensor, "number N"]:
    """`number` code words in random order, as many as 4^bits / 2, of length 1.

    Those with a = 0 come first: up to 2^bits words are nearly orthogonal. Only half of the field
    serves as `a`, so that no `twisted` word is one of these.
    """
    linear, cubic = _traces(bits)
    index = torch.arange(number)
    a, b = _bits(index >> bits, bits), _bits(index, bits)
    signs = 1 - 2 * ((a @ cubic + b @ linear) % 2)
    order = torch.randperm(number, generator=generator)
    return signs[order].double() / math.sqrt(2**bits - 1)


def twist(bits: int) -> Float[Tensor, " N"]:
    """Signs that turn each of the `token_words` into a word that is none of them."""
    return (1 - 2 * _traces(bits)[1][-1]).double()


def alike(bits: int, number: int) -> tuple[float, float]:
    """Bounds of the product of two of `number` words: the highest, and the largest in size.

    The second holds for a word and a twisted word too.
    """
    N = 2**bits - 1
    highest = -1 / N if number <= 2**bits else (2 ** (bits // 2 + 1) - 1) / N
    return highest, (2 ** (bits // 2 + 1) + 1) / N


def steps_apart(
    frequencies: Float[Tensor, " plane"], weights: Float[Tensor, " plane"], length: int
) -> Float[Tensor, " distance"]:
    """The kernel at distances -2 to `length` - 1, in this order."""
    distances = torch.arange(-2, length, dtype=torch.double)
    return torch.cos(distances[:, None] * frequencies) @ weights


def looking_back(
    kernel: Float[Tensor, " distance"], steps: tuple[float, float]
) -> Float[Tensor, " back"]:
    """A query's score of the key 0, 1, 2 ... places back, as a share of its sharpness.

    The key is `steps[0]` times its place one step on and `steps[1]` times its place two on.
    """
    return steps[0] * kernel[1:-1] + steps[1] * kernel[:-2]


def steps_for(
    kernel: Float[Tensor, " distance"], blur: float, sharpness: float
) -> tuple[float, float]:
    """The weights of the two steps with which the share `blur` of the attention is not one back.

    Nearly all of that share goes two places back. The higher of the two scores is 1.
    """
    low, high = 0.0, 1.0
    steps = (1.0, 0.0)
    for _ in range(60 if blur > 0 else 0):
        second = (low + high) / 2
        back = looking_back(kernel, (1 - second, second))
        steps = ((1 - second) / back[1:3].max().item(), second / back[1:3].max().item())
        share = torch.softmax(sharpness * looking_back(kernel, steps), 0)[1].item()
        low, high = (second, high) if share > 1 - blur else (low, second)
    return steps


def _traces(bits: int) -> tuple[Int[Tensor, "bits N"], Int[Tensor, "bits N"]]:
    """Tr(e x) and Tr(e x^3) for a basis of e, x the powers of a primitive element.

    Tr(e x) over those powers is a linear recurring sequence, and other e shift it.
    """
    N = 2**bits - 1
    sequence = [1] * bits
    for i in range(N - bits):
        sequence.append(sum(sequence[i + power] for power in _RECURRENCE[bits]) % 2)
    bit, power, shift = torch.tensor(sequence), torch.arange(N), torch.arange(bits)[:, None]
    return bit[(power + shift) % N], bit[(3 * power + shift) % N]


def _bits(index: Int[Tensor, " number"], bits: int) -> Int[Tensor, "number bits"]:
    return (index[:, None] >> torch.arange(bits)) & 1
