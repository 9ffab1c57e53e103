//! The prefix index's obviously right twin: a flat list of prefixes, searched by brute force.
//!
//! The oracle of the property test; never used in production.
use plimsoll_kernels::PAGE_TOKENS;

use super::{CachedPrefix, PrefixIndex, common_prefix, may_exchange};
use crate::engine::TenantId;
use crate::page_pool::{CachedPage, Evict, PageRef};

struct Entry {
    tenant: TenantId,
    /// All tokens from the start of the sequence to the end of this page.
    prefix: Vec<u32>,
    page: CachedPage,
    stamp: u64,
}

impl Entry {
    /// Position of the page's first token.
    fn base(&self) -> usize {
        (self.prefix.len() - 1) / PAGE_TOKENS * PAGE_TOKENS
    }

    /// Whether `other` continues this entry.
    fn is_before(&self, other: &Entry) -> bool {
        self.tenant == other.tenant && other.base() > self.base() && other.prefix.starts_with(&self.prefix)
    }
}

#[derive(Default)]
pub(super) struct NaiveIndex {
    entries: Vec<Entry>,
    clock: u64,
}

impl NaiveIndex {
    /// The entry for the page at `base` that agrees with `tokens` up to `end`. Of several, the greatest that is not
    /// above `wanted` (all tokens of the page that are asked for) in lexicographic order, else the least.
    fn pick(&self, tenant: TenantId, tokens: &[u32], base: usize, end: usize) -> Option<usize> {
        let wanted = &tokens[..tokens.len().min(base + PAGE_TOKENS)];
        let agreeing = || {
            self.entries.iter().enumerate().filter(|(_, e)| {
                e.tenant == tenant && e.base() == base && e.prefix.len() >= end && e.prefix[..end] == tokens[..end]
            })
        };
        let below = agreeing().filter(|(_, e)| e.prefix.as_slice() <= wanted).max_by_key(|(_, e)| e.prefix.clone());
        below.or_else(|| agreeing().min_by_key(|(_, e)| e.prefix.clone())).map(|(at, _)| at)
    }

    /// The entry that was used last the longest ago, of those that no entry extends and that `accepted` accepts.
    fn oldest_leaf(&self, accepted: impl Fn(&Entry) -> bool) -> Option<usize> {
        let is_leaf = |entry: &Entry| !self.entries.iter().any(|e| entry.is_before(e));
        let leaves = self.entries.iter().enumerate().filter(|(_, e)| is_leaf(e) && accepted(e));
        leaves.min_by_key(|(_, e)| e.stamp).map(|(at, _)| at)
    }
}

impl Evict for NaiveIndex {
    fn evict(&mut self, pages: usize) -> usize {
        let mut freed = 0;
        while freed < pages {
            let in_the_way = |leaf: &Entry| self.entries.iter().any(|e| e.page.is_evictable() && e.is_before(leaf));
            let victim = self.oldest_leaf(|e| e.page.is_evictable()).or_else(|| self.oldest_leaf(in_the_way));
            let Some(victim) = victim else { break };
            freed += usize::from(self.entries.remove(victim).page.is_evictable());
        }
        freed
    }
}

impl PrefixIndex for NaiveIndex {
    fn lookup(&mut self, tenant: TenantId, tokens: &[u32]) -> CachedPrefix {
        self.clock += 1;
        let own = self.entries.iter().filter(|e| e.tenant == tenant);
        let best = own.map(|e| common_prefix(&e.prefix, tokens)).max().unwrap_or(0);
        let mut pages = Vec::new();
        for base in (0..best).step_by(PAGE_TOKENS) {
            let at =
                self.pick(tenant, tokens, base, best.min(base + PAGE_TOKENS)).expect("the path of a match is cached");
            self.entries[at].stamp = self.clock;
            pages.push(self.entries[at].page.share());
        }
        CachedPrefix { tokens: best, pages }
    }

    fn insert(&mut self, tenant: TenantId, tokens: &[u32], pages: &mut [PageRef]) {
        self.clock += 1;
        for (base, page) in (0..tokens.len()).step_by(PAGE_TOKENS).zip(pages) {
            let end = tokens.len().min(base + PAGE_TOKENS);
            if let Some(at) = self.pick(tenant, tokens, base, end) {
                self.entries[at].stamp = self.clock;
                if end == base + PAGE_TOKENS && may_exchange(page, &self.entries[at].page) {
                    *page = self.entries[at].page.share();
                }
                continue;
            }
            self.entries.retain(|e| e.tenant != tenant || e.base() != base || !tokens[..end].starts_with(&e.prefix));
            let (prefix, page) = (tokens[..end].to_vec(), page.cache());
            self.entries.push(Entry { tenant, prefix, page, stamp: self.clock });
        }
    }

    fn forget(&mut self, tenant: TenantId, tokens: &[u32], keep: usize) -> usize {
        let on_path = |e: &Entry| e.tenant == tenant && tokens.starts_with(&e.prefix) && e.base() >= keep;
        let mut forgotten = 0;
        while let Some(deepest) =
            (0..self.entries.len()).filter(|at| on_path(&self.entries[*at])).max_by_key(|at| self.entries[*at].base())
            && !self.entries.iter().any(|e| self.entries[deepest].is_before(e))
            && self.entries[deepest].page.is_evictable()
        {
            self.entries.remove(deepest);
            forgotten += 1;
        }
        forgotten
    }

    fn clear(&mut self) -> usize {
        self.entries.drain(..).count()
    }

    fn pages(&self) -> usize {
        self.entries.len()
    }
}
