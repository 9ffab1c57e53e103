//! What a client calls its session: the headers and fields in which clients put such a name.

use axum::http::HeaderMap;

use crate::wire::chat_request::Extensions;

/// The name a client gives its session, first that is present.
pub fn named_session(headers: &HeaderMap, extensions: &Extensions) -> Option<String> {
    let header = |name: &str| {
        let value = headers.get(name)?.to_str().ok()?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    };
    extensions
        .session
        .clone()
        .or_else(|| header("x-session-id"))
        .or_else(|| header("session-id"))
        .or_else(|| extensions.prompt_cache_key.clone())
        .or_else(|| header("x-claude-code-session-id"))
        .or_else(|| extensions.metadata_session.clone())
        .filter(|name| !name.is_empty())
}
