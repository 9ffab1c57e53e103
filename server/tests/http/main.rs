//! The whole server over real sockets, on the simulated engine.

mod cancellation;
mod chat;
mod compaction;
mod completions;
mod door;
mod errors;
mod life;
mod overflow;
mod probes_and_models;
mod real_model;
mod sessions;
mod streams;
mod tools;
mod wire_client;
