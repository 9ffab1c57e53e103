//! The usage object of chat and raw completions.

use serde::Serialize;

/// What a request used, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// The rendered prompt.
    pub prompt_tokens: u32,
    /// All choices, reasoning and the tokens that ended them included.
    pub completion_tokens: u32,
    /// The sum.
    pub total_tokens: u32,
    /// Where the prompt came from.
    pub prompt_tokens_details: PromptDetails,
    /// What the completion was.
    pub completion_tokens_details: CompletionDetails,
}

/// Part of [`Usage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptDetails {
    /// Tokens whose K/V came from the prefix cache.
    pub cached_tokens: u32,
    /// Tokens written to a billed cache; this server bills nothing.
    pub cache_write_tokens: u32,
}

/// Part of [`Usage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompletionDetails {
    /// Tokens of reasoning.
    pub reasoning_tokens: u32,
}

impl Usage {
    /// Usage from its four independent numbers.
    pub fn new(prompt: u32, cached: u32, completion: u32, reasoning: u32) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt + completion,
            prompt_tokens_details: PromptDetails { cached_tokens: cached, cache_write_tokens: 0 },
            completion_tokens_details: CompletionDetails { reasoning_tokens: reasoning },
        }
    }
}
