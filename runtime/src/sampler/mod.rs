//! From logits to a token.
//!
//! A [`Sampler`] belongs to one choice of one request. It owns the random numbers, the tokens said so far and the
//! scratch memory; it never looks at other sequences of the batch, so the same seed, prompt and choice give the same
//! tokens whatever runs beside them.
//!
//! # Order of the stages
//!
//! 1. log-probabilities are read off the logits as the model gave them, before anything else touches them;
//! 2. `logit_bias`;
//! 3. `repetition_penalty` (prompt and reply), then `frequency_penalty` and `presence_penalty` (reply only);
//! 4. DRY;
//! 5. bans: banned and forbidden tokens become impossible, whatever bias they had;
//! 6. with `temperature == 0` the likeliest token, the lower id on a tie; the stages below are skipped;
//! 7. `top_k`, `typical_p`, `top_p`, `min_p`, XTC, each on the renormalised rest of the one before;
//! 8. `temperature`, then the draw.
//!
//! Stages 2 to 8 stand in the default order of llama.cpp. Temperature comes last, so that the candidates are chosen by
//! the model's own confidence and a high temperature only redistributes among them. Scope of the penalties: the
//! repetition penalty counts the prompt as llama.cpp and vLLM do, the other two count the reply as the OpenAI API says.
//!
//! # Arithmetic
//!
//! Probabilities are integers (`mass`), so sums are exact and do not depend on their order. Selection is by partial
//! sort; the whole vocabulary is never sorted, and scratch memory is reused from token to token.
//!
//! - `chain`: the stages in their order.
//! - `validate`: which parameters are accepted.
//! - `history`: the tokens said so far and the three penalties that count them.
//! - `dry`: the penalty on continuing a repetition.
//! - `candidates`: the tokens still in the running, the truncations and the draw.
//! - `mass`: the exponential and the fixed-point probability.
//! - `logprobs`: what is reported about a token.
//! - `naive`: the whole chain by sorting everything, the oracle of the tests.

mod candidates;
mod chain;
mod dry;
mod history;
mod logprobs;
mod mass;
#[cfg(test)]
mod naive;
mod validate;

pub use chain::Sampler;
pub use validate::SamplingError;
