//! Every op as its formula, on slices.
//!
//! Owns nothing, allocates freely, never runs in production. Sums are f32 in index order.

use crate::{AttentionShape, BatchLayout, PAGE_TOKENS, RopeStyle};

/// `x * w^T (+ bias)`: `x` is `[rows, cols]`, `w` is `[outputs, cols]`, the result `[rows, outputs]`.
pub fn matmul(x: &[f32], w: &[f32], bias: Option<&[f32]>, cols: usize) -> Vec<f32> {
    let outputs = w.len() / cols;
    let mut out = Vec::with_capacity(x.len() / cols * outputs);
    for row in x.chunks_exact(cols) {
        for (o, weights) in w.chunks_exact(cols).enumerate() {
            let dot: f32 = row.iter().zip(weights).map(|(a, b)| a * b).sum();
            out.push(dot + bias.map_or(0.0, |bias| bias[o]));
        }
    }
    out
}

/// `x / sqrt(mean(x^2) + eps) * weight`, for each row of `weight.len()` elements.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let mean = row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>() / row.len() as f64;
        let factor = 1.0 / (mean + f64::from(eps)).sqrt();
        out.extend(row.iter().zip(weight).map(|(v, w)| (f64::from(*v) * factor) as f32 * w));
    }
    out
}

/// `[cos(p f_0) .. cos(p f_n-1), sin(p f_0) .. sin(p f_n-1)]` for each position, the product rounded to f32.
pub fn rope_angles(positions: &[u32], frequencies: &[f32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(positions.len() * 2 * frequencies.len());
    for &p in positions {
        let angles: Vec<f64> = frequencies.iter().map(|f| f64::from(p as f32 * f)).collect();
        out.extend(angles.iter().map(|a| a.cos() as f32));
        out.extend(angles.iter().map(|a| a.sin() as f32));
    }
    out
}

/// Rotates the first `2 * n` elements of every head in place; `angles` is `[rows, 2 * n]` from [`rope_angles`].
pub fn rope(x: &mut [f32], width: usize, head_dim: usize, style: RopeStyle, angles: &[f32], n: usize) {
    for (row, angles) in x.chunks_exact_mut(width).zip(angles.chunks_exact(2 * n)) {
        for head in row.chunks_exact_mut(head_dim) {
            for i in 0..n {
                let (a, b) = match style {
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                    RopeStyle::HalfSplit => (i, i + n),
                };
                let (cos, sin) = (angles[i], angles[n + i]);
                (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
            }
        }
    }
}

/// Causal attention over paged keys and values.
///
/// `key(page, slot, kv_head, i)` and `value(..)` read one cached element. `queries` and the result are
/// `[rows, heads * head_dim]`.
pub fn attend(
    queries: &[f32],
    shape: AttentionShape,
    batch: &BatchLayout<'_>,
    key: impl Fn(usize, usize, usize, usize) -> f32,
    value: impl Fn(usize, usize, usize, usize) -> f32,
) -> Vec<f32> {
    let AttentionShape { heads, kv_heads, head_dim, scale } = shape;
    let mut out = Vec::with_capacity(queries.len());
    for (row, query) in queries.chunks_exact(heads * head_dim).enumerate() {
        let pages = batch.pages(batch.row_seq[row] as usize);
        let keys = batch.positions[row] as usize + 1;
        for h in 0..heads {
            let (q, g) = (&query[h * head_dim..][..head_dim], h / (heads / kv_heads));
            let place = |p: usize| (pages[p / PAGE_TOKENS] as usize, p % PAGE_TOKENS);
            let scores: Vec<f32> = (0..keys)
                .map(|p| {
                    let (page, slot) = place(p);
                    scale * q.iter().enumerate().map(|(i, q)| q * key(page, slot, g, i)).sum::<f32>()
                })
                .collect();
            let weights = softmax(&scores);
            for i in 0..head_dim {
                let weighted = weights.iter().enumerate().map(|(p, w)| {
                    let (page, slot) = place(p);
                    w * value(page, slot, g, i)
                });
                out.push(weighted.sum());
            }
        }
    }
    out
}

/// `exp(s - max) / sum`.
pub fn softmax(scores: &[f32]) -> Vec<f32> {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f32 = exps.iter().sum();
    exps.iter().map(|e| e / sum).collect()
}

/// `silu(gate) * up`.
pub fn swiglu(gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
}

/// Rows `rows` of `x`, each `width` wide.
pub fn gather_rows(x: &[f32], width: usize, rows: &[u32]) -> Vec<f32> {
    rows.iter().flat_map(|&r| x[r as usize * width..][..width].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rms_norm_of_a_constant_row_is_its_sign() {
        let out = rms_norm(&[3.0, 3.0, -2.0, -2.0], &[1.0, 0.5], 0.0);
        assert_eq!(out, [1.0, 0.5, -1.0, -0.5]);
    }

    #[test]
    fn rope_keeps_the_length_of_every_pair_and_leaves_the_rest() {
        for style in [RopeStyle::Interleaved, RopeStyle::HalfSplit] {
            let mut x = [3.0, 4.0, 1.0, 0.0, 7.0, 9.0];
            let angles = rope_angles(&[5], &[1.0, 0.1]);
            rope(&mut x, 6, 6, style, &angles, 2);
            let pairs = if style == RopeStyle::Interleaved { [(0, 1), (2, 3)] } else { [(0, 2), (1, 3)] };
            let lengths = pairs.map(|(a, b)| x[a].hypot(x[b]));
            let expected = if style == RopeStyle::Interleaved { [5.0, 1.0] } else { [10f32.sqrt(), 4.0] };
            for (l, e) in lengths.iter().zip(expected) {
                assert!((l - e).abs() < 1e-5, "{style:?}: length {l}, expected {e}");
            }
            assert_eq!(x[4..], [7.0, 9.0]);
        }
    }

    #[test]
    fn matmul_adds_its_bias_to_every_row() {
        let out = matmul(&[1.0, 2.0, 3.0, 4.0], &[1.0, 1.0, 1.0, -1.0], Some(&[10.0, 20.0]), 2);
        assert_eq!(out, [13.0, 19.0, 17.0, 19.0]);
    }

    #[test]
    fn attention_over_equal_keys_is_the_mean_of_the_visible_values() {
        let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 1, scale: 1.0 };
        let batch = BatchLayout { positions: &[0, 1], row_seq: &[0, 0], page_table: &[0], page_start: &[0, 1] };
        let out = attend(&[1.0; 4], shape, &batch, |_, _, _, _| 1.0, |_, slot, _, _| slot as f32);
        assert_eq!(out, [0.0, 0.0, 0.5, 0.5]);
    }
}
