//! Causal attention over pages with an online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022), for prefill
//! chunks and decode rows alike.
//!
//! The keys of a row are cut into spans of [`SPAN_TOKENS`], counted from position 0. Within a span, pages are visited
//! in ascending order, each folding 32 scores into a running maximum, sum and weighted value; span results are merged
//! in ascending order. This order depends on the row's position alone, so a row has the same bits whether it is
//! computed in a chunk, by itself, on one thread or with its spans spread over several. Keys beyond a row's position
//! are never multiplied with anything that is kept: they contribute exactly nothing.
//!
//! The query heads that share a K/V head are computed together, as are up to [`TILE_QUERIES`] queries of neighbouring
//! rows, so that a page is read once for all of them.

use std::marker::PhantomData;

use super::buffer::CpuBuffer;
use super::isa::{Kernel, PresentIsa, dispatch};
use super::kv_pages::{CpuPages, Element};
use super::lanes::{LANES, Lanes};
use super::memory::{Region, Shared};
use super::thread_pool::ThreadPool;
use super::vector_exp::exp;
use crate::{AttentionShape, BatchLayout, DeviceError, KvType, MAX_HEAD_DIM, PAGE_TOKENS, RowBuffer};

/// Tokens of a span. A fixed number: it is part of what a result's bits depend on.
pub(crate) const SPAN_TOKENS: usize = 512;

/// Queries (rows times heads of one group) that are computed together at most.
const TILE_QUERIES: usize = 32;

/// Row tiles of one parallel run; longer batches take several.
const MAX_TILES: usize = 1024;

/// f32 values of one thread's state: queries, span and running results, probabilities, four statistics.
const THREAD_FLOATS: usize = TILE_QUERIES * (3 * MAX_HEAD_DIM + PAGE_TOKENS + 4);

/// f32 values for span results that wait to be merged.
const PARTIAL_FLOATS: usize = 1 << 18;

/// Work items per thread below which a long sequence is spread over threads by its spans.
const ITEMS_PER_THREAD: usize = 2;

/// Consecutive rows of one sequence.
#[derive(Clone, Copy, Debug)]
struct RowTile {
    first: usize,
    count: usize,
}

/// Memory of the attention kernel, made once.
pub(crate) struct Scratch {
    threads: Region<f32>,
    partials: Region<f32>,
    tiles: Vec<RowTile>,
}

impl Scratch {
    /// Bytes for a pool of `threads`.
    pub fn bytes(threads: usize) -> usize {
        (threads * THREAD_FLOATS + PARTIAL_FLOATS) * size_of::<f32>() + MAX_TILES * size_of::<RowTile>()
    }

    pub fn new(threads: usize) -> Result<Self, DeviceError> {
        let what = "attention scratch";
        let mut tiles = Vec::new();
        let bytes = MAX_TILES * size_of::<RowTile>();
        tiles.try_reserve_exact(MAX_TILES).map_err(|_| DeviceError::OutOfMemory { what, bytes })?;
        Ok(Self {
            threads: Region::new(what, threads * THREAD_FLOATS)?,
            partials: Region::new(what, PARTIAL_FLOATS)?,
            tiles,
        })
    }
}

/// See [`crate::Device::attend`].
#[allow(clippy::too_many_arguments)] // The op's own, and three parts of the device.
pub(crate) fn attend(
    isa: PresentIsa,
    pool: &ThreadPool,
    scratch: &mut Scratch,
    pages: &CpuPages,
    layer: usize,
    queries: &CpuBuffer,
    shape: AttentionShape,
    batch: &BatchLayout<'_>,
    out: &mut CpuBuffer,
) {
    let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
    let (rows, width, l) = (batch.rows(), heads.saturating_mul(head_dim), pages.layout());
    assert!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "{heads} query heads over {kv_heads} K/V heads");
    assert!(
        (kv_heads, head_dim) == (l.kv_heads, l.head_dim) && layer < l.layers,
        "attention of {shape:?} on layer {layer} of {l:?}"
    );
    assert!(head_dim <= MAX_HEAD_DIM, "heads of {head_dim} elements, at most {MAX_HEAD_DIM} are supported");
    assert!(queries.width() == width && out.width() == width, "queries and outputs of {heads} heads of {head_dim}");
    assert!(queries.rows() == rows && batch.row_seq.len() == rows, "a query and a sequence per row of the batch");
    out.set_rows(rows);

    let group = heads / kv_heads;
    let heads_per_item = group.min(TILE_QUERIES);
    let rows_per_tile = TILE_QUERIES / heads_per_item;
    let task = Task {
        isa,
        pages,
        layer,
        shape,
        batch,
        queries: queries.values(),
        out: out.shared(),
        heads_per_item,
        head_parts: group.div_ceil(heads_per_item),
    };
    let mut row = 0;
    while row < rows {
        row = collect_tiles(&mut scratch.tiles, batch, pages, row, rows_per_tile);
        task.run(pool, &mut scratch.threads, &mut scratch.partials, &scratch.tiles);
    }
}

/// Cuts rows from `row` on into tiles, as many as fit, and checks what they will read. Returns the first row left over.
fn collect_tiles(
    tiles: &mut Vec<RowTile>,
    batch: &BatchLayout<'_>,
    pages: &CpuPages,
    mut row: usize,
    rows_per_tile: usize,
) -> usize {
    tiles.clear();
    while row < batch.rows() && tiles.len() < MAX_TILES {
        let seq = batch.row_seq[row];
        let mut count = 1;
        while count < rows_per_tile && batch.row_seq.get(row + count) == Some(&seq) {
            let (before, after) = (batch.positions[row + count - 1], batch.positions[row + count]);
            assert!(before < after, "rows {before}, {after} of sequence {seq} are not in ascending position");
            count += 1;
        }
        let (last, seq_pages) = (batch.positions[row + count - 1] as usize, batch.pages(seq as usize));
        let needed = last / PAGE_TOKENS + 1;
        assert!(needed <= seq_pages.len(), "position {last} of a sequence of {} pages", seq_pages.len());
        let beyond = seq_pages[..needed].iter().find(|page| **page as usize >= pages.count());
        assert!(beyond.is_none(), "page {beyond:?} of a store of {}", pages.count());
        tiles.push(RowTile { first: row, count });
        row += count;
    }
    row
}

/// What all items of one call share; shapes and page tables are checked.
struct Task<'a> {
    isa: PresentIsa,
    pages: &'a CpuPages,
    layer: usize,
    shape: AttentionShape,
    batch: &'a BatchLayout<'a>,
    queries: &'a [f32],
    out: Shared<f32>,
    heads_per_item: usize,
    /// Items that share a K/V head, one unless a group is wider than a tile.
    head_parts: usize,
}

/// Neighbouring rows times heads of one group.
#[derive(Clone, Copy)]
struct Item {
    rows: RowTile,
    kv_head: usize,
    first_head: usize,
    heads: usize,
}

impl Item {
    fn queries(&self) -> usize {
        self.rows.count * self.heads
    }
}

/// The state of a set of queries, in separate arrays.
struct State<'a> {
    /// `[queries][stride]`: weighted values.
    values: &'a mut [f32],
    /// Largest score.
    largest: &'a mut [f32],
    /// Sum of `exp(score - largest)`.
    sum: &'a mut [f32],
}

impl<'a> State<'a> {
    /// Cuts a state of `queries` off the front of `memory`.
    fn take(memory: &'a mut [f32], queries: usize, stride: usize) -> (Self, &'a mut [f32]) {
        let (values, rest) = memory.split_at_mut(queries * stride);
        let (largest, rest) = rest.split_at_mut(queries);
        let (sum, rest) = rest.split_at_mut(queries);
        (Self { values, largest, sum }, rest)
    }

    fn floats(queries: usize, stride: usize) -> usize {
        queries * (stride + 2)
    }
}

impl Task<'_> {
    /// Elements of a head, padded to whole vectors.
    fn stride(&self) -> usize {
        self.shape.head_dim.next_multiple_of(LANES)
    }

    fn items_per_tile(&self) -> usize {
        self.shape.kv_heads * self.head_parts
    }

    fn item(&self, tiles: &[RowTile], item: usize) -> Item {
        let per_tile = self.items_per_tile();
        // Later rows see more keys; the longest work goes first.
        let rows = tiles[tiles.len() - 1 - item / per_tile];
        let (kv_head, part) = (item % per_tile / self.head_parts, item % self.head_parts);
        let group = self.shape.heads / self.shape.kv_heads;
        let first = part * self.heads_per_item;
        Item { rows, kv_head, first_head: kv_head * group + first, heads: self.heads_per_item.min(group - first) }
    }

    /// Spans that the last row of a tile sees.
    fn spans(&self, rows: RowTile) -> usize {
        self.batch.positions[rows.first + rows.count - 1] as usize / SPAN_TOKENS + 1
    }

    fn run(&self, pool: &ThreadPool, threads: &mut Region<f32>, partials: &mut Region<f32>, tiles: &[RowTile]) {
        let items = tiles.len() * self.items_per_tile();
        let spans = tiles.iter().map(|tile| self.spans(*tile)).max().unwrap_or(0);
        let threads = threads.shared();
        let few = pool.threads() > 1 && items < ITEMS_PER_THREAD * pool.threads();
        if few && spans > 1 {
            let queries = tiles.iter().map(|tile| tile.count).max().unwrap_or(0) * self.heads_per_item;
            let slot = State::floats(queries, self.stride());
            // One slot per item keeps the merged result, the others wait to be merged.
            let waiting = (PARTIAL_FLOATS / slot / items).saturating_sub(1);
            if waiting > 1 {
                return self.run_split(pool, threads, partials, tiles, slot, waiting.min(spans));
            }
        }
        pool.run_on_threads(items, |thread, item| {
            // SAFETY: a thread has its own part and runs one item at a time.
            let memory = unsafe { threads.part(thread * THREAD_FLOATS, THREAD_FLOATS) };
            let item = self.item(tiles, item);
            let (mut merged, memory) = State::take(memory, item.queries(), self.stride());
            let (mut span_state, memory) = State::take(memory, item.queries(), self.stride());
            for span in 0..self.spans(item.rows) {
                self.span(item, span, if span == 0 { &mut merged } else { &mut span_state }, memory);
                if span > 0 {
                    self.merge(item, span, &mut merged, &span_state);
                }
            }
            self.finish(item, &merged);
        });
    }

    /// Spans of the same item on several threads, `waiting` spans at a time.
    fn run_split(
        &self,
        pool: &ThreadPool,
        threads: Shared<f32>,
        partials: &mut Region<f32>,
        tiles: &[RowTile],
        slot: usize,
        waiting: usize,
    ) {
        let items = tiles.len() * self.items_per_tile();
        let partials = partials.shared();
        let slot_of = |item: usize, i: usize| (item * (waiting + 1) + i) * slot;
        let spans = tiles.iter().map(|tile| self.spans(*tile)).max().unwrap_or(0);
        for first in (0..spans).step_by(waiting) {
            let count = waiting.min(spans - first);
            pool.run_on_threads(items * count, |thread, i| {
                let (index, span) = (i / count, first + i % count);
                let item = self.item(tiles, index);
                if span >= self.spans(item.rows) {
                    return;
                }
                // SAFETY: a thread has its own part, and a pair of item and span its own slot.
                let (memory, partial) = unsafe {
                    (
                        threads.part(thread * THREAD_FLOATS, THREAD_FLOATS),
                        partials.part(slot_of(index, 1 + i % count), slot),
                    )
                };
                let (mut state, _) = State::take(partial, item.queries(), self.stride());
                self.span(item, span, &mut state, memory);
            });
            pool.run(items, |index| {
                let item = self.item(tiles, index);
                // SAFETY: an item has its own slots.
                let merged = unsafe { partials.part(slot_of(index, 0), slot) };
                let (mut merged, _) = State::take(merged, item.queries(), self.stride());
                let last = self.spans(item.rows).min(first + count);
                for span in first..last {
                    // SAFETY: as above, and slot 0 is none of these.
                    let partial = unsafe { partials.part(slot_of(index, 1 + span - first), slot) };
                    let (partial, _) = State::take(partial, item.queries(), self.stride());
                    if span == 0 {
                        merged.values.copy_from_slice(partial.values);
                        merged.largest.copy_from_slice(partial.largest);
                        merged.sum.copy_from_slice(partial.sum);
                    } else {
                        self.merge(item, span, &mut merged, &partial);
                    }
                }
                if last == self.spans(item.rows) && last > first {
                    self.finish(item, &merged);
                }
            });
        }
    }

    /// Position of query `q` of an item.
    fn position(&self, item: Item, q: usize) -> usize {
        self.batch.positions[item.rows.first + q / item.heads] as usize
    }

    /// The first query whose position is at least `position`.
    fn first_query(&self, item: Item, position: usize) -> usize {
        let positions = &self.batch.positions[item.rows.first..][..item.rows.count];
        positions.partition_point(|p| (*p as usize) < position) * item.heads
    }

    /// Computes the queries of `item` over the keys of one span.
    fn span(&self, item: Item, span: usize, state: &mut State<'_>, memory: &mut [f32]) {
        match self.pages.layout().kv_type {
            KvType::F32 => dispatch(self.isa, Span::<f32> { task: self, item, span, state, memory, t: PhantomData }),
            KvType::F16 => dispatch(self.isa, Span::<u16> { task: self, item, span, state, memory, t: PhantomData }),
        }
    }

    /// Folds the result of a span into that of the spans before it, for the queries that see the span.
    fn merge(&self, item: Item, span: usize, merged: &mut State<'_>, partial: &State<'_>) {
        let first = self.first_query(item, span * SPAN_TOKENS);
        dispatch(self.isa, Merge { first, count: item.queries(), stride: self.stride(), merged, partial });
    }

    /// Writes `values / sum` to the output.
    fn finish(&self, item: Item, state: &State<'_>) {
        let (head_dim, width) = (self.shape.head_dim, self.shape.heads * self.shape.head_dim);
        for q in 0..item.queries() {
            let (row, head) = (item.rows.first + q / item.heads, item.first_head + q % item.heads);
            // SAFETY: shapes were checked; every item has its own rows and heads.
            let out = unsafe { self.out.part(row * width + head * head_dim, head_dim) };
            let factor = 1.0 / state.sum[q];
            for (o, v) in out.iter_mut().zip(&state.values[q * self.stride()..]) {
                *o = v * factor;
            }
        }
    }
}

/// See [`Task::merge`].
struct Merge<'a, 'b, 'c> {
    first: usize,
    count: usize,
    stride: usize,
    merged: &'a mut State<'b>,
    partial: &'a State<'c>,
}

impl Kernel for Merge<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        let Self { first, count, stride, merged, partial } = self;
        for q in first..count {
            let largest = merged.largest[q].max(partial.largest[q]);
            // SAFETY: the instructions are present by the contract of `run`.
            let [a, b] =
                unsafe { [merged.largest[q], partial.largest[q]].map(|l| S::first(exp::<S>(S::splat(l - largest)))) };
            merged.largest[q] = largest;
            merged.sum[q] = merged.sum[q] * a + partial.sum[q] * b;
            let from = &partial.values[q * stride..][..stride];
            let to = &mut merged.values[q * stride..][..stride];
            for i in 0..stride {
                to[i] = to[i] * a + from[i] * b;
            }
        }
    }
}

/// See [`Task::span`]; `T` is the element type of the cache.
struct Span<'a, 'b, 'c, T> {
    task: &'a Task<'c>,
    item: Item,
    span: usize,
    state: &'a mut State<'b>,
    memory: &'a mut [f32],
    t: PhantomData<T>,
}

impl<T: Element> Kernel for Span<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        let Self { task, item, span, state, memory, .. } = self;
        let AttentionShape { heads, head_dim, scale, .. } = task.shape;
        let (stride, count) = (task.stride(), item.queries());
        let (queries, rest) = memory.split_at_mut(count * stride);
        let probabilities = &mut rest[..count * PAGE_TOKENS];
        for q in 0..count {
            let (row, head) = (item.rows.first + q / item.heads, item.first_head + q % item.heads);
            let from = &task.queries[(row * heads + head) * head_dim..][..head_dim];
            for (to, from) in queries[q * stride..].iter_mut().zip(from) {
                *to = from * scale;
            }
        }
        state.values.fill(0.0);
        state.largest.fill(f32::NEG_INFINITY);
        state.sum.fill(0.0);

        let seq_pages = task.batch.pages(task.batch.row_seq[item.rows.first] as usize);
        let last = task.position(item, count - 1);
        let end = (last + 1).min((span + 1) * SPAN_TOKENS).div_ceil(PAGE_TOKENS);
        for page in span * SPAN_TOKENS / PAGE_TOKENS..end {
            let head = |page: usize| task.pages.head::<T>(seq_pages[page] as usize, task.layer, item.kv_head);
            let (keys, values) = head(page);
            let next_keys = head((page + 1).min(end - 1)).0;
            let mut q = task.first_query(item, page * PAGE_TOKENS);
            while q < count {
                // SAFETY: the match leaves at least the `R` queries that the call reads.
                unsafe {
                    let mut call =
                        PageCall { task, item, page, keys, values, next_keys, queries, probabilities, state };
                    q += match (count - q, S::QUERY_ROWS) {
                        (4.., 4..) => call.queries::<S, 4>(q),
                        (2.., 2..) => call.queries::<S, 2>(q),
                        _ => call.queries::<S, 1>(q),
                    };
                }
            }
        }
    }
}

/// One page met by the queries of an item.
struct PageCall<'a, 'b, 'c, T> {
    task: &'a Task<'c>,
    item: Item,
    page: usize,
    keys: *const T,
    values: *const T,
    /// Keys of the page that follows, asked for meanwhile: pages lie anywhere, and no hardware knows where.
    next_keys: *const T,
    queries: &'a [f32],
    probabilities: &'a mut [f32],
    state: &'a mut State<'b>,
}

impl<T: Element> PageCall<'_, '_, '_, T> {
    /// Folds the page into the state of queries `q .. q + R`, all of which see at least its first key; returns `R`.
    ///
    /// # Safety
    /// The processor has the instructions of `S`; `keys` and `values` are those of a page.
    #[inline(always)]
    unsafe fn queries<S: Lanes, const R: usize>(&mut self, q: usize) -> usize {
        let stride = self.task.stride();
        let queries = &self.queries[q * stride..][..R * stride];
        let probabilities = &mut self.probabilities[q * PAGE_TOKENS..][..R * PAGE_TOKENS];
        let (largest, sum) = (&mut self.state.largest[q..][..R], &mut self.state.sum[q..][..R]);
        let head_dim = self.task.shape.head_dim;
        let mut visible = [0; R];
        let mut factors = [0.0; R];
        // SAFETY: keys are read as `[head_dim][32]`, and the slices above have `R` queries.
        unsafe {
            let scores: [[S::F; R]; 2] = if S::SCORE_VECTORS == 2 {
                dot_keys::<S, T, R, 2>(self.keys, queries.as_ptr(), stride, head_dim, [self.values, self.next_keys])
            } else {
                let [low] = dot_keys::<S, T, R, 1>(self.keys, queries.as_ptr(), stride, head_dim, [self.values]);
                let upper = self.keys.add(LANES);
                let [high] = dot_keys::<S, T, R, 1>(upper, queries.as_ptr(), stride, head_dim, [self.next_keys]);
                [low, high]
            };
            for r in 0..R {
                let n = PAGE_TOKENS.min(self.task.position(self.item, q + r) + 1 - self.page * PAGE_TOKENS);
                let (low_n, high_n) = (n.min(LANES), n.saturating_sub(LANES));
                let never = S::splat(f32::NEG_INFINITY);
                let low = S::keep_first(scores[0][r], low_n, never);
                let high = S::keep_first(scores[1][r], high_n, never);
                let top = largest[r].max(S::reduce_max(S::max(low, high)));
                let zero = S::splat(0.0);
                let low = S::keep_first(exp::<S>(S::sub(low, S::splat(top))), low_n, zero);
                let high = S::keep_first(exp::<S>(S::sub(high, S::splat(top))), high_n, zero);
                // Before the first page there is nothing to scale, whatever the factor.
                factors[r] = S::first(exp::<S>(S::splat(largest[r] - top)));
                sum[r] = sum[r] * factors[r] + S::reduce_add(S::add(low, high));
                largest[r] = top;
                visible[r] = n;
                S::store(probabilities[r * PAGE_TOKENS..][..LANES].as_mut_ptr(), low);
                S::store(probabilities[r * PAGE_TOKENS + LANES..][..LANES].as_mut_ptr(), high);
            }
            let mut i = 0;
            while i + LANES * S::VALUE_VECTORS <= head_dim {
                match S::VALUE_VECTORS {
                    4 => self.add_values::<S, Whole, R, 4>(q, i, factors, visible),
                    _ => self.add_values::<S, Whole, R, 1>(q, i, factors, visible),
                }
                i += LANES * S::VALUE_VECTORS;
            }
            while i + LANES <= head_dim {
                self.add_values::<S, Whole, R, 1>(q, i, factors, visible);
                i += LANES;
            }
            if i < head_dim {
                self.add_values::<S, Partial, R, 1>(q, i, factors, visible);
            }
        }
        R
    }

    /// `values = values * factor + sum of probability * value`, for `V` vectors from element `i` on, of which `L` says
    /// whether a head has all elements.
    ///
    /// # Safety
    /// As [`Self::queries`]; the elements from `i` on are those that `L` reads.
    #[inline(always)]
    unsafe fn add_values<S: Lanes, L: ValueLoad, const R: usize, const V: usize>(
        &mut self,
        q: usize,
        i: usize,
        factors: [f32; R],
        visible: [usize; R],
    ) {
        let (stride, head_dim) = (self.task.stride(), self.task.shape.head_dim);
        let state = &mut self.state.values[q * stride..][..R * stride];
        let probabilities = &self.probabilities[q * PAGE_TOKENS..][..R * PAGE_TOKENS];
        let together = visible.into_iter().min().unwrap_or(0);
        // SAFETY: `i` and its `V` vectors lie below `stride`; values are read as `[32][head_dim]`, what a head has.
        unsafe {
            let mut sums = [[S::splat(0.0); V]; R];
            for r in 0..R {
                for v in 0..V {
                    let at = state.as_ptr().add(r * stride + i + v * LANES);
                    sums[r][v] = S::mul(S::load(at), S::splat(factors[r]));
                }
            }
            for t in 0..together {
                let values = L::load::<S, T, V>(self.values.add(t * head_dim + i), head_dim - i);
                for r in 0..R {
                    let p = S::splat(*probabilities.get_unchecked(r * PAGE_TOKENS + t));
                    for v in 0..V {
                        sums[r][v] = S::fma(p, values[v], sums[r][v]);
                    }
                }
            }
            for r in 0..R {
                for t in together..visible[r] {
                    let values = L::load::<S, T, V>(self.values.add(t * head_dim + i), head_dim - i);
                    let p = S::splat(probabilities[r * PAGE_TOKENS + t]);
                    for v in 0..V {
                        sums[r][v] = S::fma(p, values[v], sums[r][v]);
                    }
                }
                for v in 0..V {
                    S::store(state.as_mut_ptr().add(r * stride + i + v * LANES), sums[r][v]);
                }
            }
        }
    }
}

/// The scores of `V` vectors of tokens with `R` queries: `[head_dim][PAGE_TOKENS]` keys from their first token on,
/// `[R][stride]` queries. Per token one sum, elements in order. Asks for what lies behind `ahead` on the way.
///
/// # Safety
/// The processor has the instructions of `S`; keys and queries are as large as stated.
#[inline(always)]
unsafe fn dot_keys<S: Lanes, T: Element, const R: usize, const V: usize>(
    keys: *const T,
    queries: *const f32,
    stride: usize,
    head_dim: usize,
    ahead: [*const T; V],
) -> [[S::F; R]; V] {
    // SAFETY: by the contract; a prefetch may be of any address.
    unsafe {
        let mut scores = [[S::splat(0.0); R]; V];
        for i in 0..head_dim {
            let mut tokens = [S::splat(0.0); V];
            for v in 0..V {
                tokens[v] = T::load::<S>(keys.add(i * PAGE_TOKENS + v * LANES));
                let mut line = 0;
                while line < PAGE_TOKENS * size_of::<T>() {
                    S::prefetch(ahead[v].wrapping_add(i * PAGE_TOKENS).cast::<u8>().wrapping_add(line));
                    line += 64;
                }
            }
            for r in 0..R {
                let x = S::splat(*queries.add(r * stride + i));
                for v in 0..V {
                    scores[v][r] = S::fma(x, tokens[v], scores[v][r]);
                }
            }
        }
        scores
    }
}

/// How vectors of a value are read. Two types, because the rare partial vector goes through memory: a branch for it in
/// the loop over tokens would cost the common loop its registers.
trait ValueLoad {
    /// `V` vectors at `p`, where `rest` elements are left.
    ///
    /// # Safety
    /// The processor has the instructions of `S`; the elements that the implementation reads lie behind `p`.
    unsafe fn load<S: Lanes, T: Element, const V: usize>(p: *const T, rest: usize) -> [S::F; V];
}

/// Reads `16 V` elements.
struct Whole;

impl ValueLoad for Whole {
    #[inline(always)]
    unsafe fn load<S: Lanes, T: Element, const V: usize>(p: *const T, _rest: usize) -> [S::F; V] {
        // SAFETY: by the contract.
        unsafe {
            let mut values = [S::splat(0.0); V];
            for v in 0..V {
                values[v] = T::load::<S>(p.add(v * LANES));
            }
            values
        }
    }
}

/// Reads `rest < 16` elements into the first vector.
struct Partial;

impl ValueLoad for Partial {
    #[inline(always)]
    unsafe fn load<S: Lanes, T: Element, const V: usize>(p: *const T, rest: usize) -> [S::F; V] {
        // SAFETY: by the contract.
        unsafe {
            let mut values = [S::splat(0.0); V];
            values[0] = T::load_part::<S>(p, rest);
            values
        }
    }
}
