//! What a request needs over its whole life, in exact integers.
//!
//! Pure arithmetic: it holds nothing and asks nobody. A request is admitted when the pages of its [`Lifetime`] can be
//! promised, so that neither its reply nor what is reserved beyond it can run out of room.

use plimsoll_kernels::PAGE_TOKENS;

use super::request::{GenerationRequest, Purpose, Reject};
use crate::executor::ExecutorGeometry;

/// Everything a request may ever hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    /// Pages, those with a cached prefix included.
    pub pages: usize,
}

/// How many choices may run at once: each may want a row and its logits in every step. A choice that still prefills is
/// one of them, so the others' decodes always leave it a row.
pub(super) fn most_sequences(geometry: &ExecutorGeometry, step_rows: usize) -> usize {
    geometry.max_logits.min(step_rows)
}

/// Tokens of the prompt that all choices share: several choices part before the last token of the prompt, which each
/// feeds for itself, so that every reply begins with logits of its own sequence.
pub(super) fn shared_prompt(request: &GenerationRequest) -> usize {
    request.prompt.len() - usize::from(request.n > 1)
}

/// Checks a request and works out its lifetime.
pub(super) fn lifetime(
    request: &GenerationRequest,
    geometry: &ExecutorGeometry,
    most_sequences: usize,
) -> Result<Lifetime, Reject> {
    if request.prompt.is_empty() {
        return Err(Reject::Malformed("the prompt holds no token"));
    }
    if request.n > 1 && (request.purpose == Purpose::Warm || request.guide.is_some()) {
        return Err(Reject::Malformed("only a reply without a guide may have several choices"));
    }
    if request.purpose == Purpose::Warm && request.guide.is_some() {
        return Err(Reject::Malformed("a guide is given where nothing is said"));
    }
    let reply_cap = match request.purpose {
        Purpose::Reply => request.reply_cap as usize,
        Purpose::Warm => 0,
    };
    if request.purpose == Purpose::Reply && reply_cap == 0 {
        return Err(Reject::Malformed("the reply cap is 0 tokens"));
    }
    if request.n == 0 {
        return Err(Reject::Malformed("no choice is asked for"));
    }
    if request.n as usize > most_sequences {
        return Err(Reject::Malformed("more choices are asked for than can decode at once"));
    }
    if request.prompt.iter().any(|token| *token as usize >= geometry.vocab) {
        return Err(Reject::Malformed("the prompt holds a token that is not in the vocabulary"));
    }
    let reply_end = request.prompt.len() + reply_cap;
    let end = reply_end + request.reserve_beyond as usize;
    if end > geometry.max_context {
        return Err(Reject::BeyondContext { needed: end, max_context: geometry.max_context });
    }
    let shared = shared_prompt(request) / PAGE_TOKENS;
    let own = reply_end.div_ceil(PAGE_TOKENS) - shared;
    let beyond = end.div_ceil(PAGE_TOKENS) - reply_end.div_ceil(PAGE_TOKENS);
    let pages = shared + request.n as usize * own + beyond;
    if pages > geometry.pages {
        return Err(Reject::NeverFits { needed: pages, pages: geometry.pages });
    }
    Ok(Lifetime { pages })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{CachePolicy, RequestId, SamplingParams, TenantId};

    const GEOMETRY: ExecutorGeometry =
        ExecutorGeometry { vocab: 100, max_context: 1000, max_rows: 64, max_logits: 8, pages: 40, page_bytes: 0 };

    fn request(prompt: usize, reply_cap: u32, reserve_beyond: u32, n: u32) -> GenerationRequest {
        GenerationRequest {
            id: RequestId(0),
            tenant: TenantId(0),
            prompt: vec![1; prompt],
            reply_cap,
            reserve_beyond,
            n,
            sampling: SamplingParams::default(),
            end_tokens: vec![],
            min_tokens: 0,
            ignore_end: false,
            banned: vec![],
            cache: CachePolicy::Default,
            purpose: Purpose::Reply,
            guide: None,
        }
    }

    #[test]
    fn the_whole_life_is_counted_in_pages() {
        for (prompt, cap, beyond, n, pages) in [
            (1, 1, 0, 1, 1),
            (31, 1, 0, 1, 1),
            (31, 2, 0, 1, 2),
            (32, 32, 0, 1, 2),
            (32, 32, 1, 1, 3),
            (64, 32, 0, 3, 1 + 3 * 2),
            (65, 31, 0, 3, 2 + 3),
            (65, 31, 33, 3, 2 + 3 + 2),
        ] {
            assert_eq!(lifetime(&request(prompt, cap, beyond, n), &GEOMETRY, 8), Ok(Lifetime { pages }));
        }
    }

    #[test]
    fn what_can_never_run_is_refused_with_the_numbers() {
        let refused = |request: GenerationRequest| lifetime(&request, &GEOMETRY, 8).unwrap_err();
        let needed = 1001;
        assert_eq!(refused(request(900, 100, 1, 1)), Reject::BeyondContext { needed, max_context: 1000 });
        assert!(lifetime(&request(900, 100, 0, 1), &GEOMETRY, 8).is_ok());
        assert_eq!(refused(request(1, 320, 0, 4)), Reject::NeverFits { needed: 44, pages: 40 });
        for malformed in [request(0, 1, 0, 1), request(1, 0, 0, 1), request(1, 1, 0, 0), request(1, 1, 0, 9)] {
            assert!(matches!(refused(malformed), Reject::Malformed(_)));
        }
        let extreme = request(1, u32::MAX, u32::MAX, 8);
        assert!(matches!(refused(extreme), Reject::BeyondContext { .. }));
        let mut outside = request(2, 1, 0, 1);
        outside.prompt[1] = 100;
        assert!(matches!(refused(outside), Reject::Malformed(_)));
    }
}
