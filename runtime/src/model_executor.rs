//! Runs an architecture on a device, behind the executor contract.
//!
//! Owns the device, the model and the bytes of the K/V pages; turns the engine's spans into the ragged batch that
//! kernels read. Decides nothing: which page holds what is the engine's business.

use plimsoll_kernels::{AttentionShape, BatchLayout, Device, DeviceError, PageIndex};
use plimsoll_models::architecture::{Architecture, CacheView, ModelShape, TokenBatch};

use crate::executor::{Executor, ExecutorError, ExecutorGeometry, SeqId, Span};

/// A loaded model with its page store.
pub struct ModelExecutor<D: Device> {
    device: D,
    model: Box<dyn Architecture<D>>,
    pages: D::Pages,
    geometry: ExecutorGeometry,
    step: StepArrays,
}

/// The ragged batch as plain arrays, reused from step to step.
#[derive(Default)]
struct StepArrays {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    row_seq: Vec<u32>,
    page_table: Vec<PageIndex>,
    page_start: Vec<u32>,
    logit_rows: Vec<u32>,
}

impl StepArrays {
    fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.row_seq.clear();
        self.page_table.clear();
        self.page_start.clear();
        self.page_start.push(0);
        self.logit_rows.clear();
    }

    fn push(&mut self, span: &Span<'_>, logits: RowsWithLogits) {
        let seq = (self.page_start.len() - 1) as u32;
        let first_row = self.tokens.len() as u32;
        let rows = span.tokens.len() as u32;
        self.tokens.extend_from_slice(span.tokens);
        self.positions.extend(span.start..span.start + rows);
        self.row_seq.extend(std::iter::repeat_n(seq, rows as usize));
        self.page_table.extend_from_slice(span.pages);
        self.page_start.push(self.page_table.len() as u32);
        match logits {
            RowsWithLogits::All => self.logit_rows.extend(first_row..first_row + rows),
            RowsWithLogits::Last if span.logits => self.logit_rows.push(first_row + rows - 1),
            RowsWithLogits::Last => {}
        }
    }
}

#[derive(Clone, Copy)]
enum RowsWithLogits {
    /// The last row of each span that wants logits.
    Last,
    /// Every row.
    All,
}

/// The page store of one step, as an architecture sees it.
struct PagedView<'a, D: Device> {
    pages: &'a mut D::Pages,
    batch: BatchLayout<'a>,
}

impl<D: Device> CacheView<D> for PagedView<'_, D> {
    fn append(&mut self, device: &D, layer: usize, keys: &D::Buffer, values: &D::Buffer) {
        device.write_kv(self.pages, layer, keys, values, &self.batch);
    }

    fn attend(&self, device: &D, layer: usize, queries: &D::Buffer, shape: AttentionShape, out: &mut D::Buffer) {
        device.attend(self.pages, layer, queries, shape, &self.batch, out);
    }
}

impl<D: Device> ModelExecutor<D> {
    /// Allocates `pages` pages for `model` and takes it over. Sequences may grow to `max_context` tokens, or to what
    /// the model supports where that is less.
    pub fn new(
        device: D,
        model: Box<dyn Architecture<D>>,
        pages: usize,
        max_context: usize,
    ) -> Result<Self, DeviceError> {
        let shape = model.shape();
        let geometry = ExecutorGeometry {
            vocab: shape.vocab,
            max_context: max_context.min(shape.max_context),
            max_rows: model.limits().max_rows,
            max_logits: model.limits().max_logits,
            pages,
            page_bytes: shape.kv.page_bytes(),
        };
        let store = device.pages(shape.kv, pages)?;
        Ok(Self { device, model, pages: store, geometry, step: StepArrays::default() })
    }

    /// Sizes of the model.
    pub fn model_shape(&self) -> &ModelShape {
        self.model.shape()
    }

    /// Runs one span and returns the logits of *all* its rows, `[tokens, vocab]`: for verification against references.
    pub fn forward_all_rows(&mut self, span: &Span<'_>) -> &[f32] {
        self.step.clear();
        self.step.push(span, RowsWithLogits::All);
        self.run()
    }

    fn run(&mut self) -> &[f32] {
        let Self { device, model, pages, step, .. } = self;
        let batch = TokenBatch { tokens: &step.tokens, positions: &step.positions, logit_rows: &step.logit_rows };
        let mut view = PagedView::<D> {
            pages,
            batch: BatchLayout {
                positions: &step.positions,
                row_seq: &step.row_seq,
                page_table: &step.page_table,
                page_start: &step.page_start,
            },
        };
        model.forward(device, &batch, &mut view)
    }
}

impl<D: Device> Executor for ModelExecutor<D> {
    fn geometry(&self) -> &ExecutorGeometry {
        &self.geometry
    }

    fn describe(&self) -> String {
        let shape = self.model.shape();
        format!("{}, {}, {:?} cache", shape.architecture, self.device.describe(), shape.kv.kv_type)
    }

    fn forward(&mut self, spans: &[Span<'_>]) -> Result<&[f32], ExecutorError> {
        self.step.clear();
        for span in spans {
            self.step.push(span, RowsWithLogits::Last);
        }
        Ok(self.run())
    }

    fn copy_page(&mut self, from: PageIndex, to: PageIndex) {
        self.device.copy_page(&mut self.pages, from, to);
    }

    fn retire(&mut self, _seq: SeqId) {}
}
