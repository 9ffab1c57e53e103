//! `GET /v1/models`: one answer in which every client finds the field it looks for.
//!
//! OpenAI reads `data[].id`; vLLM-aware clients `max_model_len`; llama.cpp-aware ones `meta.n_ctx`; OpenRouter-aware
//! ones `top_provider`; Anthropic's client `max_input_tokens`; Codex its own `models` list. All of them get the
//! window that is enforced, to the token.

use serde_json::{Value, json};

/// The base instructions Codex is given: its own take a quarter of a small window.
const CODEX_INSTRUCTIONS: &str = "You are a coding agent. You work in the user's working directory with the tools you \
are given. Read before you change, change as little as the task needs, run the tests that cover your change, and say \
what you did in a few sentences.";

/// One model as it is listed.
#[derive(Clone, Debug)]
pub struct ListedModel {
    /// Its id on the API.
    pub id: String,
    /// Its name for people.
    pub display_name: String,
    /// Seconds since 1970 when the server began to offer it.
    pub created: u64,
    /// The enforced window, in tokens.
    pub window: u32,
    /// The longest prompt that is admitted with a reply of one token.
    pub max_input: u32,
    /// Most tokens of one reply.
    pub max_output: u32,
    /// The longest sequence the model was made for.
    pub trained_window: u32,
    /// Where compaction begins, in tokens.
    pub compaction: u32,
}

/// One entry of `data`, and the answer to `GET /v1/models/{id}`.
pub fn model_object(model: &ListedModel) -> Value {
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "plimsoll",
        "type": "model",
        "display_name": model.display_name,
        "created_at": rfc3339(model.created),
        "max_input_tokens": model.max_input,
        "max_tokens": model.max_output,
        "context_length": model.window,
        "context_window": model.window,
        "max_model_len": model.window,
        "meta": {"n_ctx": model.window, "n_ctx_train": model.trained_window},
        "top_provider": {"context_length": model.window, "max_completion_tokens": model.max_output},
    })
}

/// The whole answer.
pub fn model_list(models: &[ListedModel]) -> Value {
    json!({
        "object": "list",
        "has_more": false,
        "first_id": models.first().map(|model| &model.id),
        "last_id": models.last().map(|model| &model.id),
        "data": models.iter().map(model_object).collect::<Vec<_>>(),
        "models": models.iter().enumerate().map(|(at, model)| codex_object(at, model)).collect::<Vec<_>>(),
    })
}

/// A model as Codex's catalogue wants it; it rejects a list in which one of these fields is missing.
fn codex_object(at: usize, model: &ListedModel) -> Value {
    json!({
        "slug": model.id,
        "display_name": model.display_name,
        "supported_reasoning_levels": [],
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": true,
        "priority": at + 1,
        "support_verbosity": false,
        "truncation_policy": {"mode": "tokens", "limit": (model.window / 6).clamp(512, 10_000)},
        "supports_parallel_tool_calls": true,
        "context_window": model.window,
        "auto_compact_token_limit": model.compaction,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
        "model_messages": {"instructions_template": CODEX_INSTRUCTIONS, "instructions_variables": null},
    })
}

/// Seconds since 1970 as RFC 3339 in UTC. Civil date from day number: Howard Hinnant's `civil_from_days`.
fn rfc3339(seconds: u64) -> String {
    let days = (seconds / 86_400) as i64;
    let in_day = seconds % 86_400;
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z - era * 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", in_day / 3600, in_day / 60 % 60, in_day % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_dates() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_796_133_346, "2026-12-01T13:55:46Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(seconds), date);
        }
    }
}
