//! K/V pages in host memory, laid out for the attention kernel.
//!
//! A page holds, layer after layer and K/V head after head, the keys transposed as `[head_dim][PAGE_TOKENS]`, so that
//! the scores of all its tokens are a few vectors, and the values as `[PAGE_TOKENS][head_dim]`. Owns the layout and the
//! writing; which page belongs to whom is the page pool's business.

use std::ops::Range;

use super::buffer::CpuBuffer;
use super::isa::{Kernel, PresentIsa, dispatch};
use super::lanes::{LANES, Lanes};
use super::memory::{Region, Shared};
use super::thread_pool::ThreadPool;
use crate::{BatchLayout, DeviceError, KvLayout, KvType, PAGE_TOKENS, PageIndex, RowBuffer};

/// A store of pages.
#[derive(Debug)]
pub struct CpuPages {
    layout: KvLayout,
    count: usize,
    data: Region<u8>,
}

/// A type of cached elements.
pub(crate) trait Element: Copy {
    /// Reads 16.
    ///
    /// # Safety
    /// The processor has the instructions of `S`; 16 elements lie behind `p`.
    unsafe fn load<S: Lanes>(p: *const Self) -> S::F;
    /// Reads `n < 16`; the other lanes are zero.
    ///
    /// # Safety
    /// The processor has the instructions of `S`; `n` elements lie behind `p`.
    unsafe fn load_part<S: Lanes>(p: *const Self, n: usize) -> S::F;
    /// Converts 16 values.
    ///
    /// # Safety
    /// The processor has the instructions of `S`.
    unsafe fn convert<S: Lanes>(v: S::F) -> [Self; LANES];
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const f32) -> S::F {
        // SAFETY: by the contract.
        unsafe { S::load(p) }
    }
    #[inline(always)]
    unsafe fn load_part<S: Lanes>(p: *const f32, n: usize) -> S::F {
        // SAFETY: by the contract.
        unsafe { S::load_part(p, n) }
    }
    #[inline(always)]
    unsafe fn convert<S: Lanes>(v: S::F) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: the array holds 16.
        unsafe { S::store(out.as_mut_ptr(), v) };
        out
    }
}

/// The bits of an IEEE half.
impl Element for u16 {
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u16) -> S::F {
        // SAFETY: by the contract.
        unsafe { S::load_f16(p) }
    }
    #[inline(always)]
    unsafe fn load_part<S: Lanes>(p: *const u16, n: usize) -> S::F {
        let mut part = [0; LANES];
        // SAFETY: by the contract.
        unsafe {
            part.as_mut_ptr().copy_from_nonoverlapping(p, n);
            S::load_f16(part.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn convert<S: Lanes>(v: S::F) -> [u16; LANES] {
        let mut out = [0; LANES];
        // SAFETY: the array holds 16.
        unsafe { S::store_f16(out.as_mut_ptr(), v) };
        out
    }
}

impl CpuPages {
    pub(crate) fn new(layout: KvLayout, count: usize) -> Result<Self, DeviceError> {
        // Every offset below is smaller than this product, so that none of them overflows. A product beyond `usize` is
        // an impossible allocation.
        let KvLayout { layers, kv_heads, head_dim, kv_type } = layout;
        let bytes = [layers, kv_heads, head_dim, 2 * PAGE_TOKENS * kv_type.bytes(), count]
            .into_iter()
            .try_fold(1, usize::checked_mul)
            .unwrap_or(usize::MAX);
        Ok(Self { layout, count, data: Region::new("K/V pages", bytes)? })
    }

    /// Geometry.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Pages in the store.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.bytes()
    }

    /// Elements of the keys, or of the values, of one head in one page.
    fn head_elements(&self) -> usize {
        PAGE_TOKENS * self.layout.head_dim
    }

    /// Where, in elements, the keys of a head begin; its values follow after [`Self::head_elements`].
    fn keys_at(&self, page: usize, layer: usize, kv_head: usize) -> usize {
        let l = self.layout;
        assert!(page < self.count, "page {page} of a store of {}", self.count);
        assert!(layer < l.layers && kv_head < l.kv_heads, "layer {layer}, K/V head {kv_head} in a cache of {l:?}");
        ((page * l.layers + layer) * l.kv_heads + kv_head) * 2 * self.head_elements()
    }

    /// The keys `[head_dim][PAGE_TOKENS]` and values `[PAGE_TOKENS][head_dim]` of one head in one page.
    #[inline(always)]
    pub(crate) fn head<T: Element>(&self, page: usize, layer: usize, kv_head: usize) -> (*const T, *const T) {
        assert_eq!(size_of::<T>(), self.layout.kv_type.bytes(), "the element type of the cache");
        let keys = self.data.as_ptr().cast::<T>().wrapping_add(self.keys_at(page, layer, kv_head));
        (keys, keys.wrapping_add(self.head_elements()))
    }

    pub(crate) fn copy_page(&mut self, from: PageIndex, to: PageIndex) {
        let (from, to, bytes) = (from as usize, to as usize, self.layout.page_bytes());
        assert!(from < self.count && to < self.count, "page {from} to {to} in a store of {}", self.count);
        self.data.copy_within(from * bytes..(from + 1) * bytes, to * bytes);
    }
}

/// The page and slot of row `row`, checked.
fn place(batch: &BatchLayout<'_>, row: usize) -> (usize, usize) {
    let (position, pages) = (batch.positions[row] as usize, batch.pages(batch.row_seq[row] as usize));
    let page = position / PAGE_TOKENS;
    assert!(page < pages.len(), "row {row} at position {position} of a sequence of {} pages", pages.len());
    (pages[page] as usize, position % PAGE_TOKENS)
}

/// Rows below which writing is not worth another thread.
const SERIAL_ROWS: usize = 16;

/// Writes keys and values of every row.
pub(crate) fn write_kv(
    isa: PresentIsa,
    pool: &ThreadPool,
    pages: &mut CpuPages,
    layer: usize,
    keys: &CpuBuffer,
    values: &CpuBuffer,
    batch: &BatchLayout<'_>,
) {
    let KvLayout { kv_heads, head_dim, .. } = pages.layout;
    let rows = batch.rows();
    for (what, buffer) in [("keys", keys), ("values", values)] {
        assert_eq!(buffer.width(), kv_heads * head_dim, "{what} of {kv_heads} heads of {head_dim}");
        assert_eq!(buffer.rows(), rows, "a row of {what} per row of the batch");
    }
    assert_eq!(batch.row_seq.len(), rows, "a sequence per row");
    let data = pages.data.shared();
    let pages = &*pages;
    let write = |heads| {
        let (keys, values) = (keys.values(), values.values());
        dispatch(isa, WriteHeads { pages, data, layer, heads, keys, values, batch });
    };
    if rows < SERIAL_ROWS { write(0..kv_heads) } else { pool.run(kv_heads, |head| write(head..head + 1)) }
}

/// Writes some heads of all rows; nobody else writes these heads.
struct WriteHeads<'a> {
    pages: &'a CpuPages,
    data: Shared<u8>,
    layer: usize,
    heads: Range<usize>,
    keys: &'a [f32],
    values: &'a [f32],
    batch: &'a BatchLayout<'a>,
}

impl Kernel for WriteHeads<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        // SAFETY: the instructions are present by the contract of `run`; the types are those of the cache.
        unsafe {
            match self.pages.layout.kv_type {
                KvType::F32 => self.write::<S, f32>(),
                KvType::F16 => self.write::<S, u16>(),
            }
        }
    }
}

impl WriteHeads<'_> {
    /// # Safety
    /// The processor has the instructions of `S`; `T` is the element type of the cache.
    #[inline(always)]
    unsafe fn write<S: Lanes, T: Element>(&self) {
        let KvLayout { kv_heads, head_dim, .. } = self.pages.layout;
        for row in 0..self.batch.rows() {
            let (page, slot) = place(self.batch, row);
            for head in self.heads.clone() {
                let at = self.pages.keys_at(page, self.layer, head);
                let source = (row * kv_heads + head) * head_dim;
                let (keys, values) = (&self.keys[source..][..head_dim], &self.values[source..][..head_dim]);
                let mut i = 0;
                while i < head_dim {
                    let n = LANES.min(head_dim - i);
                    // SAFETY: `keys_at` checked page, layer and head; `slot < PAGE_TOKENS` and `i + n <= head_dim`, so
                    // the writes stay in the head's part of the page, which no other item writes.
                    unsafe {
                        let to = self.data.at(0).cast::<T>().add(at);
                        let key = T::convert::<S>(S::load_part(keys[i..].as_ptr(), n));
                        let value = T::convert::<S>(S::load_part(values[i..].as_ptr(), n));
                        for (j, k) in key[..n].iter().enumerate() {
                            to.add((i + j) * PAGE_TOKENS + slot).write(*k);
                        }
                        let to = to.add(self.pages.head_elements() + slot * head_dim + i);
                        to.copy_from_nonoverlapping(value.as_ptr(), n);
                    }
                    i += n;
                }
            }
        }
    }
}
