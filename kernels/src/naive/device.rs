//! The [`Device`] made of the naive ops: f32 weights, f32 activations, one thread.
//!
//! The oracle of tests in every crate above this one; never used in production. It allocates as it likes, so its byte
//! counts are those of its long-lived buffers alone.

use half::f16;

use super::{dequantize, ops};
use crate::{
    AttentionShape, BatchLayout, Device, DeviceError, GgmlType, KvLayout, KvType, PAGE_TOKENS, PageIndex, RopeStyle,
    RowBuffer, WeightSource,
};

/// Executes every op by its formula.
#[derive(Clone, Copy, Debug, Default)]
pub struct NaiveDevice;

/// Dequantised weights `[rows, cols]`.
#[derive(Clone, Debug)]
pub struct NaiveMatrix {
    rows: usize,
    cols: usize,
    weights: Vec<f32>,
}

/// Activations `[rows, width]`.
#[derive(Clone, Debug)]
pub struct NaiveBuffer {
    width: usize,
    max_rows: usize,
    values: Vec<f32>,
}

impl RowBuffer for NaiveBuffer {
    fn width(&self) -> usize {
        self.width
    }

    fn rows(&self) -> usize {
        self.values.len() / self.width
    }

    fn set_rows(&mut self, rows: usize) {
        assert!(rows <= self.max_rows, "{rows} rows in a buffer of at most {}", self.max_rows);
        self.values.resize(rows * self.width, 0.0);
    }
}

impl NaiveBuffer {
    fn put(&mut self, rows: usize, values: Vec<f32>) {
        self.set_rows(rows);
        self.values.copy_from_slice(&values);
    }
}

/// K/V pages `[page][layer][key or value][slot][kv_head][head_dim]`.
#[derive(Clone, Debug)]
pub struct NaivePages {
    layout: KvLayout,
    elements: Elements,
}

#[derive(Clone, Debug)]
enum Elements {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

/// Which half of a page.
#[derive(Clone, Copy)]
enum Half {
    Keys,
    Values,
}

impl NaivePages {
    fn page_elements(&self) -> usize {
        2 * self.layout.layers * PAGE_TOKENS * self.layout.kv_heads * self.layout.head_dim
    }

    fn index(&self, page: usize, layer: usize, half: Half, slot: usize, head: usize, i: usize) -> usize {
        let l = self.layout;
        assert!(layer < l.layers && head < l.kv_heads && i < l.head_dim, "layer {layer}, head {head}, element {i}");
        ((((page * l.layers + layer) * 2 + half as usize) * PAGE_TOKENS + slot) * l.kv_heads + head) * l.head_dim + i
    }

    fn get(&self, page: usize, layer: usize, half: Half, slot: usize, head: usize, i: usize) -> f32 {
        let at = self.index(page, layer, half, slot, head, i);
        match &self.elements {
            Elements::F32(v) => v[at],
            Elements::F16(v) => v[at].to_f32(),
        }
    }

    fn set(&mut self, at: usize, value: f32) {
        match &mut self.elements {
            Elements::F32(v) => v[at] = value,
            Elements::F16(v) => v[at] = f16::from_f32(value),
        }
    }
}

impl Device for NaiveDevice {
    type Matrix = NaiveMatrix;
    type Vector = Vec<f32>;
    type Buffer = NaiveBuffer;
    type Pages = NaivePages;

    fn describe(&self) -> String {
        "naive f32 reference, 1 thread".into()
    }

    fn reads(&self, format: GgmlType) -> bool {
        dequantize::FORMATS.contains(&format)
    }

    fn matrix_bytes(&self, _format: GgmlType, rows: usize, cols: usize) -> usize {
        rows * cols * size_of::<f32>()
    }

    fn matrix(&self, source: &WeightSource<'_>) -> Result<NaiveMatrix, DeviceError> {
        Ok(NaiveMatrix { rows: source.rows, cols: source.cols, weights: dequantize(source)? })
    }

    fn vector(&self, values: &[f32]) -> Result<Vec<f32>, DeviceError> {
        Ok(values.to_vec())
    }

    fn buffer_bytes(&self, width: usize, max_rows: usize) -> usize {
        width * max_rows * size_of::<f32>()
    }

    fn buffer(&self, width: usize, max_rows: usize) -> Result<NaiveBuffer, DeviceError> {
        Ok(NaiveBuffer { width, max_rows, values: Vec::with_capacity(width * max_rows) })
    }

    fn pages(&self, layout: KvLayout, count: usize) -> Result<NaivePages, DeviceError> {
        let elements = count * layout.page_bytes() / layout.kv_type.bytes();
        let elements = match layout.kv_type {
            KvType::F32 => Elements::F32(vec![0.0; elements]),
            KvType::F16 => Elements::F16(vec![f16::ZERO; elements]),
        };
        Ok(NaivePages { layout, elements })
    }

    fn scratch_bytes(&self) -> usize {
        0
    }

    fn embed(&self, table: &NaiveMatrix, tokens: &[u32], out: &mut NaiveBuffer) {
        assert_eq!(out.width, table.cols, "embedding of {} into a buffer of {}", table.cols, out.width);
        out.put(tokens.len(), ops::gather_rows(&table.weights, table.cols, tokens));
    }

    fn rms_norm(&self, x: &NaiveBuffer, weight: &Vec<f32>, eps: f32, out: &mut NaiveBuffer) {
        assert_eq!(x.width, weight.len(), "norm of {} over rows of {}", weight.len(), x.width);
        out.put(x.rows(), ops::rms_norm(&x.values, weight, eps));
    }

    fn add_rms_norm(
        &self,
        residual: &mut NaiveBuffer,
        delta: &NaiveBuffer,
        weight: &Vec<f32>,
        eps: f32,
        out: &mut NaiveBuffer,
    ) {
        self.add(residual, delta);
        self.rms_norm(residual, weight, eps, out);
    }

    fn add(&self, residual: &mut NaiveBuffer, delta: &NaiveBuffer) {
        assert_eq!(residual.values.len(), delta.values.len(), "sum of buffers of different sizes");
        for (r, d) in residual.values.iter_mut().zip(&delta.values) {
            *r += d;
        }
    }

    fn linear(
        &self,
        x: &NaiveBuffer,
        matrices: &[&NaiveMatrix],
        biases: &[Option<&Vec<f32>>],
        outs: &mut [&mut NaiveBuffer],
    ) {
        assert!(matrices.len() == biases.len() && matrices.len() == outs.len(), "a bias slot and an output per matrix");
        for ((matrix, bias), out) in matrices.iter().zip(biases).zip(outs) {
            assert_eq!(x.width, matrix.cols, "{} x {} matrix on rows of {}", matrix.rows, matrix.cols, x.width);
            assert_eq!(out.width, matrix.rows, "{} x {} matrix into rows of {}", matrix.rows, matrix.cols, out.width);
            let bias = bias.map(Vec::as_slice);
            out.put(x.rows(), ops::matmul(&x.values, &matrix.weights, bias, matrix.cols));
        }
    }

    fn rope_angles(&self, positions: &[u32], frequencies: &Vec<f32>, out: &mut NaiveBuffer) {
        out.put(positions.len(), ops::rope_angles(positions, frequencies));
    }

    fn rope(&self, x: &mut NaiveBuffer, head_dim: usize, style: RopeStyle, angles: &NaiveBuffer) {
        assert_eq!(x.rows(), angles.rows(), "an angle row per row");
        ops::rope(&mut x.values, x.width, head_dim, style, &angles.values, angles.width / 2);
    }

    fn write_kv(
        &self,
        pages: &mut NaivePages,
        layer: usize,
        keys: &NaiveBuffer,
        values: &NaiveBuffer,
        batch: &BatchLayout<'_>,
    ) {
        let KvLayout { kv_heads, head_dim, .. } = pages.layout;
        assert!(keys.rows() == batch.rows() && values.rows() == batch.rows(), "a key and a value per row of the batch");
        for row in 0..batch.rows() {
            let position = batch.positions[row] as usize;
            let page = batch.pages(batch.row_seq[row] as usize)[position / PAGE_TOKENS] as usize;
            for (half, source) in [(Half::Keys, keys), (Half::Values, values)] {
                for head in 0..kv_heads {
                    for i in 0..head_dim {
                        let at = pages.index(page, layer, half, position % PAGE_TOKENS, head, i);
                        pages.set(at, source.values[row * source.width + head * head_dim + i]);
                    }
                }
            }
        }
    }

    fn attend(
        &self,
        pages: &NaivePages,
        layer: usize,
        queries: &NaiveBuffer,
        shape: AttentionShape,
        batch: &BatchLayout<'_>,
        out: &mut NaiveBuffer,
    ) {
        assert_eq!(queries.rows(), batch.rows(), "a query per row of the batch");
        let result = ops::attend(
            &queries.values,
            shape,
            batch,
            |page, slot, head, i| pages.get(page, layer, Half::Keys, slot, head, i),
            |page, slot, head, i| pages.get(page, layer, Half::Values, slot, head, i),
        );
        out.put(queries.rows(), result);
    }

    fn swiglu(&self, gate: &NaiveBuffer, up: &NaiveBuffer, out: &mut NaiveBuffer) {
        assert_eq!(gate.values.len(), up.values.len(), "gate and up of different sizes");
        out.put(gate.rows(), ops::swiglu(&gate.values, &up.values));
    }

    fn gather_rows(&self, x: &NaiveBuffer, rows: &[u32], out: &mut NaiveBuffer) {
        out.put(rows.len(), ops::gather_rows(&x.values, x.width, rows));
    }

    fn copy_page(&self, pages: &mut NaivePages, from: PageIndex, to: PageIndex) {
        let size = pages.page_elements();
        let (from, to) = (from as usize * size, to as usize * size);
        match &mut pages.elements {
            Elements::F32(v) => v.copy_within(from..from + size, to),
            Elements::F16(v) => v.copy_within(from..from + size, to),
        }
    }

    fn read<'a>(&self, buffer: &'a mut NaiveBuffer) -> &'a [f32] {
        &buffer.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: KvLayout = KvLayout { layers: 2, kv_heads: 1, head_dim: 2, kv_type: KvType::F16 };

    fn buffer(rows: &[&[f32]]) -> NaiveBuffer {
        NaiveBuffer { width: rows[0].len(), max_rows: rows.len(), values: rows.concat() }
    }

    #[test]
    fn a_single_key_answers_with_its_value_rounded_to_the_cache_type() {
        let device = NaiveDevice;
        let mut pages = device.pages(LAYOUT, 3).unwrap();
        let batch = BatchLayout { positions: &[0], row_seq: &[0], page_table: &[2], page_start: &[0, 1] };
        device.write_kv(&mut pages, 1, &buffer(&[&[1.0, 2.0]]), &buffer(&[&[0.1, 3.0]]), &batch);
        let shape = AttentionShape { heads: 1, kv_heads: 1, head_dim: 2, scale: 1.0 };
        let mut out = device.buffer(2, 1).unwrap();
        device.attend(&pages, 1, &buffer(&[&[1.0, 1.0]]), shape, &batch, &mut out);
        assert_eq!(device.read(&mut out), [f16::from_f32(0.1).to_f32(), 3.0]);
    }

    #[test]
    fn a_copied_page_answers_as_its_original_in_all_layers() {
        let device = NaiveDevice;
        let mut pages = device.pages(LAYOUT, 2).unwrap();
        let original = BatchLayout { positions: &[0, 1], row_seq: &[0, 0], page_table: &[0], page_start: &[0, 1] };
        let copy = BatchLayout { page_table: &[1], ..original };
        let shape = AttentionShape { heads: 1, kv_heads: 1, head_dim: 2, scale: 0.5 };
        let queries = buffer(&[&[1.0, 1.0], &[-1.0, 2.0]]);
        for layer in 0..2 {
            let keys = buffer(&[&[1.0, layer as f32], &[2.0, 0.5]]);
            device.write_kv(&mut pages, layer, &keys, &queries, &original);
        }
        device.copy_page(&mut pages, 0, 1);
        for layer in 0..2 {
            let (mut a, mut b) = (device.buffer(2, 2).unwrap(), device.buffer(2, 2).unwrap());
            device.attend(&pages, layer, &queries, shape, &original, &mut a);
            device.attend(&pages, layer, &queries, shape, &copy, &mut b);
            assert_eq!(device.read(&mut a), device.read(&mut b));
            assert_ne!(device.read(&mut a), [0.0; 4]);
        }
    }
}
