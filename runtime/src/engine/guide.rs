//! A reply that the engine writes together with the model.
//!
//! The contract by which a summary gets its skeleton: after each sampled token the guide says whether it stands, or
//! which tokens take its place. Knows nothing of summaries, and is called on the engine thread, so it must be quick.

/// What becomes of the token that was just sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guidance {
    /// It stands.
    Keep,
    /// These take its place (at least one). They are appended, fed and reported like sampled tokens, and count against
    /// the reply's cap.
    Replace(Vec<u32>),
    /// It is thrown away and the reply ends.
    End,
}

/// Guides one reply; see the module's text.
pub trait Guide: Send + std::fmt::Debug {
    /// A token was sampled. End tokens are given like any other: a guided reply ends by [`Guidance::End`] or at its cap.
    fn sampled(&mut self, token: u32) -> Guidance;

    /// Tokens that cannot be sampled next.
    fn forbidden(&self) -> &[u32];
}
