"use strict";
// Attention in plain numbers (float64): the same four lines as interp/attention/reference.py.
// A matrix is an array of rows.

const matmul = (a, b) =>
  a.map((row) => b[0].map((_, j) => row.reduce((sum, x, i) => sum + x * b[i][j], 0)));
const transposed = (a) => a[0].map((_, j) => a.map((row) => row[j]));
const plus = (a, b) => a.map((row, i) => row.map((x, j) => x + b[i][j]));
const times = (a, factor) => a.map((row) => row.map((x) => x * factor));

const scoresOf = (q, k, scale = 1 / Math.sqrt(q[0].length)) => times(matmul(q, transposed(k)), scale);

// Minus infinity where the mask is false: the softmax gives exactly 0.
const hide = (scores, mask) =>
  mask ? scores.map((row, i) => row.map((s, j) => (mask[i][j] ? s : -Infinity))) : scores;

// A row with minus infinity only becomes zeros.
function softmaxRow(row) {
  const top = Math.max(...row);
  if (top === -Infinity) return row.map(() => 0);
  const weights = row.map((s) => Math.exp(s - top));
  const total = weights.reduce((sum, w) => sum + w, 0);
  return weights.map((w) => w / total);
}
const softmax = (scores) => scores.map(softmaxRow);

// Masks: true where attention is allowed. A window counts the query itself.
const allowed = (n, rule) =>
  Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j) => rule(i, j)));
const causal = (n) => allowed(n, (query, key) => key <= query);

// x @ W rotates the plane back by the angle, towards earlier positions. W has a factor of
// sqrt(gain * sqrt(d_k)), so that a unit query scores `gain` nats on a key of the same direction.
function turning(degrees, gain) {
  const size = Math.sqrt(gain * Math.sqrt(2));
  const angle = (degrees * Math.PI) / 180;
  const [cos, sin] = [size * Math.cos(angle), size * Math.sin(angle)];
  return [
    [cos, -sin],
    [sin, cos],
  ];
}

// Operations, bytes and reach of a stack of causal layers. A multiply-add is two operations, a
// score 4 bytes, a cached number 2 bytes. kv_heads divides heads, heads divides d.
function costOf({ n, d, heads, kv_heads, layers, window: keys, tile }) {
  const seen = Math.min(keys, n);
  const side = Math.min(tile, n);
  const perToken = 2 * 2 * layers * kv_heads * (d / heads);
  return {
    projections: 4 * n * d ** 2 + (4 * n * d ** 2 * kv_heads) / heads,
    pairs: 4 * n ** 2 * d,
    window_pairs: 4 * n * seen * d,
    score_bytes: 4 * heads * n ** 2,
    tile_bytes: 4 * side ** 2,
    cache_bytes: perToken * n,
    window_cache_bytes: perToken * seen,
    reach: Math.min(layers * (seen - 1), n - 1),
  };
}
