//! The engine: who may run, on which pages, for how many tokens.
//!
//! - [`budget`]: the window as a contract, in exact integers.
//! - [`memory_plan`]: every byte that will be allocated, before it is.
//! - [`page_pool`]: reference-counted K/V pages and promises of pages.
//! - [`prefix_index`]: which tokens are cached on which pages.
//! - [`executor`]: the contract between the engine and something that computes logits.
//! - [`model_executor`]: an architecture on a device behind it.
//! - [`model_text`]: what tokens mean: rendering, splitting, the text side of a model.
//! - [`sessions`]: which conversation a request belongs to, and what stands for its compacted part, on disk.
//! - [`compaction`]: one transaction that makes a long conversation short.
//! - [`simulated`]: scripted replies behind the same contract.
//! - [`verify`]: a model against itself and against reference logits.
//! - [`speed`]: how fast a model is, without an engine around it.
//! - [`sampler`]: from logits to a token.
//! - [`detokenizer`], [`stop_strings`]: from tokens to text that may be shown.
//! - [`engine`]: the engine thread, its commands, its ledger and its schedule.

pub mod budget;
pub mod compaction;
pub mod detokenizer;
pub mod engine;
pub mod executor;
pub mod memory_plan;
pub mod model_executor;
pub mod model_text;
pub mod page_pool;
pub mod prefix_index;
pub mod sampler;
pub mod sessions;
pub mod simulated;
pub mod speed;
pub mod stop_strings;
pub mod verify;
