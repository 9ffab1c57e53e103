//! Which tokens are cached on which pages.
//!
//! The contract of the prefix index, with two implementations: [`PageTrie`] (used) and a naive twin (a flat list,
//! searched by brute force: the oracle of the property tests).
//!
//! An index remembers token sequences page by page: the pages of a sequence are full ([`PAGE_TOKENS`] tokens) except
//! perhaps the last. It owns one hold on each of its pages and nothing else; it never copies bytes, never trusts a
//! hash (every token of a match is compared), and never mixes tenants.
//!
//! A match ends at any token, also in the middle of a page: whole matched pages are shared, and the last, partly
//! matched page is shared too until its reader writes (copy-on-write, see [`crate::page_pool::PageTable`]).
//!
//! Every cached page that nobody else holds can be evicted, so it may be promised to someone. That takes care in one
//! case only, because lookups hand out whole paths and [`PrefixIndex::insert`] exchanges the pages of its caller for
//! those that already hold the same tokens (which also means that equal prefixes are never kept twice): forks that
//! share pages from before such an exchange may hold a page of a path whose beginning nobody holds. Eviction then
//! forgets that page first; it stays with its users. Pinning a prefix is nothing but keeping the [`CachedPrefix`] of a
//! lookup: nothing of a path that is held from its beginning is evicted or forgotten.
//!
//! The idea is RadixAttention (SGLang, Zheng et al. 2024), with pages instead of tokens as edges.

#[cfg(test)]
mod naive;
mod page_trie;

use plimsoll_kernels::PAGE_TOKENS;

use crate::engine::TenantId;
use crate::page_pool::{CachedPage, Evict, PageRef};

pub use page_trie::PageTrie;

/// What a lookup found: the first `tokens` tokens lie on `pages`, the last page perhaps only partly.
#[must_use = "the pages stay unevictable for as long as this lives"]
#[derive(Clone, Debug, Default)]
pub struct CachedPrefix {
    /// Matched tokens.
    pub tokens: usize,
    /// Their pages, `tokens.div_ceil(PAGE_TOKENS)` of them.
    pub pages: Vec<PageRef>,
}

impl CachedPrefix {
    /// Matched pages that are full, and can be shared for as long as the reader lives.
    pub fn full_pages(&self) -> usize {
        self.tokens / PAGE_TOKENS
    }

    /// Lets go of a partly matched last page.
    pub fn without_partial(mut self) -> Self {
        let full = self.full_pages();
        self.pages.truncate(full);
        self.tokens = full * PAGE_TOKENS;
        self
    }
}

/// The contract; see the module's text.
pub trait PrefixIndex: Evict {
    /// The longest cached prefix of `tokens` that was inserted for `tenant`, at token granularity. Counts as a use of
    /// every page on the path. A caller that needs logits passes all but the last token of its prompt.
    fn lookup(&mut self, tenant: TenantId, tokens: &[u32]) -> CachedPrefix;

    /// Remembers that `tokens` lie on `pages` (`tokens.len().div_ceil(PAGE_TOKENS)` of them, all holding valid K/V).
    /// Where a full page with the same tokens is cached already, `pages` gets a share of that page instead of its
    /// own, unless that would use up a page that may be promised. A partial page that is a prefix of a longer one is forgotten in favour of the longer one.
    fn insert(&mut self, tenant: TenantId, tokens: &[u32], pages: &mut [PageRef]);

    /// Forgets the pages that hold nothing but tokens of this sequence behind its first `keep`, deepest first, up to one
    /// that somebody uses or that another sequence goes on from; returns how many pages came free.
    fn forget(&mut self, tenant: TenantId, tokens: &[u32], keep: usize) -> usize;

    /// Forgets everything; returns how many pages were held. Pages in use stay with their users.
    fn clear(&mut self) -> usize;

    /// Pages held.
    fn pages(&self) -> usize;
}

/// Whether a reader of `own` may read `cached`, which holds the same tokens, in its place. If `cached` can be evicted it
/// counts as free and may be promised to someone, so taking it is right only where `own` becomes free in its stead. (It
/// does not where the index was cleared between two readers of `own` and the computation of `cached`.)
fn may_exchange(own: &PageRef, cached: &CachedPage) -> bool {
    !own.is_shared() || !cached.is_evictable()
}

/// Length of the common prefix of two token sequences.
fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use plimsoll_kernels::PageIndex;
    use proptest::prelude::*;

    use super::naive::NaiveIndex;
    use super::*;
    use crate::page_pool::{PagePool, PageTable, Reservation};

    const TENANT: TenantId = TenantId(0);

    /// An index, its pool, and what a device would hold on each page.
    struct World<I> {
        pool: PagePool,
        index: I,
        contents: HashMap<PageIndex, Vec<u32>>,
    }

    struct Running {
        tenant: TenantId,
        tokens: Vec<u32>,
        filled: usize,
        table: PageTable,
        promise: Reservation,
    }

    impl<I: PrefixIndex> World<I> {
        fn new(pages: usize, index: I) -> Self {
            Self { pool: PagePool::new(pages), index, contents: HashMap::new() }
        }

        /// Looks up, reserves, and "computes" the rest of the tokens; `None` if there is no room.
        fn start(&mut self, tenant: TenantId, tokens: &[u32], spare: usize) -> Option<Running> {
            let hit = self.index.lookup(tenant, tokens);
            assert_eq!(hit.pages.len(), hit.tokens.div_ceil(PAGE_TOKENS));
            for (at, page) in hit.pages.iter().enumerate() {
                let expected = &tokens[at * PAGE_TOKENS..hit.tokens.min((at + 1) * PAGE_TOKENS)];
                assert_eq!(&self.contents[&page.index()][..expected.len()], expected, "a page holds other tokens");
            }
            let need = (tokens.len() + spare).div_ceil(PAGE_TOKENS) - hit.full_pages();
            let (hit, promise) = match self.pool.reserve(need) {
                Some(promise) => (hit, promise),
                None => {
                    let hit = hit.without_partial();
                    let promise = self.pool.reserve(need)?;
                    (hit, promise)
                }
            };
            let mut run = Running {
                tenant,
                tokens: tokens[..hit.tokens].to_vec(),
                filled: hit.tokens,
                table: PageTable::from_shared(hit.pages),
                promise,
            };
            self.extend(&mut run, &tokens[hit.tokens..]);
            Some(run)
        }

        fn extend(&mut self, run: &mut Running, tokens: &[u32]) {
            let end = run.filled + tokens.len();
            if let Some(copy) = run.table.prepare(run.filled, end, &mut run.promise, &mut self.index) {
                let bytes = self.contents[&copy.from()].clone();
                self.contents.insert(copy.to(), bytes);
            }
            for (position, token) in (run.filled..end).zip(tokens) {
                let page = self.contents.entry(run.table.indices()[position / PAGE_TOKENS]).or_default();
                page.truncate(position % PAGE_TOKENS);
                page.push(*token);
            }
            run.tokens.extend_from_slice(tokens);
            run.filled = end;
        }

        fn remember(&mut self, run: &mut Running, tokens: usize) {
            let pages = tokens.div_ceil(PAGE_TOKENS);
            let World { index, .. } = self;
            run.table.exchange(|holds| index.insert(run.tenant, &run.tokens[..tokens], &mut holds[..pages]));
            for (position, token) in run.tokens.iter().enumerate() {
                let page = run.table.indices()[position / PAGE_TOKENS];
                assert_eq!(
                    self.contents[&page][position % PAGE_TOKENS],
                    *token,
                    "an exchanged page holds other tokens"
                );
            }
        }

        fn finish(&mut self, mut run: Running) {
            let filled = run.filled;
            self.remember(&mut run, filled);
        }
    }

    fn numbered(from: u32, count: usize) -> Vec<u32> {
        (from..).take(count).collect()
    }

    #[test]
    fn a_match_ends_at_the_very_token_where_the_sequences_part() {
        let mut world = World::new(64, PageTrie::default());
        let first = numbered(0, 100);
        let run = world.start(TENANT, &first, 0).unwrap();
        world.finish(run);
        for common in 0..=100 {
            let mut other = first[..common].to_vec();
            other.extend(numbered(1000, 40));
            let hit = world.index.lookup(TENANT, &other);
            assert_eq!(hit.tokens, common);
            assert_eq!(hit.pages.len(), common.div_ceil(PAGE_TOKENS));
        }
    }

    #[test]
    fn tenants_never_see_each_others_pages() {
        let mut world = World::new(8, PageTrie::default());
        let tokens = numbered(0, 70);
        let run = world.start(TenantId(1), &tokens, 0).unwrap();
        world.finish(run);
        assert_eq!(world.index.lookup(TenantId(2), &tokens).tokens, 0);
        assert_eq!(world.index.lookup(TenantId(1), &tokens).tokens, 70);
    }

    #[test]
    fn equal_prefixes_computed_side_by_side_are_kept_once() {
        let mut world = World::new(8, PageTrie::default());
        let tokens = numbered(0, 2 * PAGE_TOKENS);
        let mut a = world.start(TENANT, &tokens, 0).unwrap();
        let mut b = world.start(TENANT, &tokens, 0).unwrap();
        assert_eq!(world.pool.counts().in_use(), 4);
        world.remember(&mut a, tokens.len());
        world.remember(&mut b, tokens.len());
        assert_eq!(world.pool.counts().in_use(), 2);
        assert_eq!(a.table.indices(), b.table.indices());
    }

    #[test]
    fn the_least_recently_used_branch_goes_first_and_a_pinned_one_never() {
        let mut world = World::new(4, PageTrie::default());
        for from in [0, 1000, 2000, 3000] {
            let run = world.start(TENANT, &numbered(from, PAGE_TOKENS), 0).unwrap();
            world.finish(run);
        }
        let pin = world.index.lookup(TENANT, &numbered(0, PAGE_TOKENS));
        let _ = world.index.lookup(TENANT, &numbered(1000, PAGE_TOKENS));
        assert_eq!(world.index.evict(1), 1);
        assert_eq!(world.index.lookup(TENANT, &numbered(2000, PAGE_TOKENS)).tokens, 0);
        assert_eq!(world.index.lookup(TENANT, &numbered(1000, PAGE_TOKENS)).tokens, PAGE_TOKENS);
        assert_eq!(world.index.evict(10), 2);
        assert_eq!(world.index.lookup(TENANT, &numbered(0, PAGE_TOKENS)).tokens, PAGE_TOKENS);
        drop(pin);
        assert_eq!(world.index.evict(10), 1);
        assert_eq!(world.pool.counts().free, 4);
    }

    #[test]
    fn clearing_forgets_everything_and_leaves_users_their_pages() {
        let mut world = World::new(8, PageTrie::default());
        let tokens = numbered(0, 80);
        let run = world.start(TENANT, &tokens, 0).unwrap();
        world.finish(run);
        let reader = world.index.lookup(TENANT, &tokens);
        assert_eq!(world.index.clear(), 3);
        assert_eq!(world.index.lookup(TENANT, &tokens).tokens, 0);
        assert_eq!(world.pool.counts().in_use(), 3);
        drop(reader);
        assert_eq!(world.pool.counts().free, 8);
    }

    fn forgetting_takes_a_branch_and_nothing_else<I: PrefixIndex>(index: I) {
        let mut world = World::new(16, index);
        let head = numbered(0, 2 * PAGE_TOKENS + 5);
        let (old, other) = ([head.clone(), numbered(500, 70)].concat(), [head.clone(), numbered(900, 40)].concat());
        for tokens in [&old, &other] {
            let run = world.start(TENANT, tokens, 0).unwrap();
            world.finish(run);
        }
        let reader = world.index.lookup(TENANT, &old);
        assert_eq!(world.index.forget(TENANT, &old, head.len()), 0, "it is read");
        drop(reader);
        assert_eq!(world.index.forget(TenantId(9), &old, 0), 0, "another tenant's");
        assert_eq!(world.index.forget(TENANT, &old, head.len()), 2, "the page with the head's end stays");
        assert_eq!(world.index.lookup(TENANT, &old).tokens, 3 * PAGE_TOKENS);
        assert_eq!(world.index.lookup(TENANT, &other).tokens, other.len());
        assert_eq!(world.index.forget(TENANT, &old, 0), 1, "the full pages of the head have another child");
        assert_eq!(world.index.forget(TENANT, &other, 0), 4);
        assert_eq!(world.pool.counts().free, 16);
    }

    #[test]
    fn a_forgotten_branch_leaves_its_head_and_other_branches() {
        forgetting_takes_a_branch_and_nothing_else(PageTrie::default());
        forgetting_takes_a_branch_and_nothing_else(NaiveIndex::default());
    }

    #[test]
    fn a_page_in_use_does_not_keep_the_pages_before_it_from_being_evicted() {
        let mut world = World::new(8, PageTrie::default());
        let tokens = numbered(0, 3 * PAGE_TOKENS);
        let first = world.start(TENANT, &tokens[..2 * PAGE_TOKENS], 0).unwrap();
        let parent = world.start(TENANT, &tokens, 0).unwrap();
        let fork = fork(&world, &parent).unwrap();
        world.finish(first);
        world.finish(parent);
        // The fork holds the third cached page, and of the first two only copies that are not cached.
        assert_eq!(world.pool.counts().evictable, 2);
        assert_eq!(world.index.evict(3), 2);
        assert_eq!(world.index.pages(), 0);
        drop(fork);
        assert_eq!(world.pool.counts().free, 8);
    }

    /// Two readers of pages that the index has forgotten, and the same tokens cached on other pages.
    fn readers_of_forgotten_pages<I: PrefixIndex>(world: &mut World<I>) -> (Running, Running) {
        let tokens = numbered(0, 2 * PAGE_TOKENS);
        let run = world.start(TENANT, &tokens, 0).unwrap();
        world.finish(run);
        let longer = |own: u32| [tokens.clone(), numbered(own, 1)].concat();
        let (a, b) = (world.start(TENANT, &longer(500), 0).unwrap(), world.start(TENANT, &longer(600), 0).unwrap());
        world.index.clear();
        let run = world.start(TENANT, &tokens, 0).unwrap();
        world.finish(run);
        (a, b)
    }

    fn an_exchange_takes_no_page_that_was_promised<I: PrefixIndex>(index: I) {
        let mut world = World::new(6, index);
        let (mut a, b) = readers_of_forgotten_pages(&mut world);
        // Nothing is free but what the index can let go of.
        let mut promise = world.pool.reserve(2).unwrap();
        world.remember(&mut a, 2 * PAGE_TOKENS);
        let taken = [promise.take(&mut world.index), promise.take(&mut world.index)];
        drop((a, b, taken));
        let cached = world.index.pages();
        assert_eq!(world.pool.counts().free + cached, 6);
    }

    #[test]
    fn after_a_clear_an_exchange_takes_no_page_that_was_promised() {
        an_exchange_takes_no_page_that_was_promised(PageTrie::default());
        an_exchange_takes_no_page_that_was_promised(NaiveIndex::default());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Start { tenant: u64, branches: Vec<u8>, spare: usize },
        Extend { pick: prop::sample::Index, tokens: usize },
        Remember { pick: prop::sample::Index },
        Fork { pick: prop::sample::Index },
        Finish { pick: prop::sample::Index },
        Abandon { pick: prop::sample::Index },
        Evict { pages: usize },
        Forget { tenant: u64, branches: Vec<u8>, keep: usize },
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        let pick = any::<prop::sample::Index>;
        prop_oneof![
            6 => (0u64..2, prop::collection::vec(0u8..12, 1..7), 0usize..70)
                .prop_map(|(tenant, branches, spare)| Step::Start { tenant, branches, spare }),
            4 => (pick(), 1usize..40).prop_map(|(pick, tokens)| Step::Extend { pick, tokens }),
            2 => pick().prop_map(|pick| Step::Remember { pick }),
            2 => pick().prop_map(|pick| Step::Fork { pick }),
            5 => pick().prop_map(|pick| Step::Finish { pick }),
            1 => pick().prop_map(|pick| Step::Abandon { pick }),
            2 => (1usize..5).prop_map(|pages| Step::Evict { pages }),
            2 => (0u64..2, prop::collection::vec(0u8..12, 1..7), 0usize..100)
                .prop_map(|(tenant, branches, keep)| Step::Forget { tenant, branches, keep }),
            1 => Just(Step::Clear),
        ]
    }

    /// Few distinct building blocks of uneven lengths, so that random prompts share prefixes that end anywhere.
    fn prompt(branches: &[u8]) -> Vec<u32> {
        branches.iter().flat_map(|b| numbered(u32::from(*b % 3), 5 + 9 * usize::from(*b))).collect()
    }

    fn at(pick: &prop::sample::Index, runs: &[(Running, Running)]) -> Option<usize> {
        (!runs.is_empty()).then(|| pick.index(runs.len()))
    }

    fn fork<I: PrefixIndex>(world: &World<I>, run: &Running) -> Option<Running> {
        let promise = world.pool.reserve(run.promise.left() + 1)?;
        let Running { tenant, tokens, filled, table, .. } = run;
        Some(Running { tenant: *tenant, tokens: tokens.clone(), filled: *filled, table: table.clone(), promise })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn the_trie_behaves_like_its_naive_twin(pages in 6usize..40, steps in prop::collection::vec(step(), 1..60)) {
            let mut fast = World::new(pages, PageTrie::default());
            let mut twin = World::new(pages, NaiveIndex::default());
            let mut runs: Vec<(Running, Running)> = Vec::new();
            for step in steps {
                match step {
                    Step::Start { tenant, branches, spare } => {
                        let tokens = prompt(&branches);
                        let a = fast.start(TenantId(tenant), &tokens, spare);
                        let b = twin.start(TenantId(tenant), &tokens, spare);
                        prop_assert_eq!(a.is_some(), b.is_some());
                        runs.extend(a.zip(b));
                    }
                    Step::Extend { pick, tokens } => if let Some(at) = at(&pick, &runs) {
                        let (a, b) = &mut runs[at];
                        let room = a.promise.left().saturating_sub(1) * PAGE_TOKENS;
                        let more = numbered(7, tokens.min(room));
                        fast.extend(a, &more);
                        twin.extend(b, &more);
                    },
                    Step::Remember { pick } => if let Some(at) = at(&pick, &runs) {
                        let (a, b) = &mut runs[at];
                        let full = a.filled / PAGE_TOKENS * PAGE_TOKENS;
                        fast.remember(a, full);
                        twin.remember(b, full);
                    },
                    Step::Fork { pick } => if let Some(at) = at(&pick, &runs) {
                        let (a, b) = (fork(&fast, &runs[at].0), fork(&twin, &runs[at].1));
                        prop_assert_eq!(a.is_some(), b.is_some());
                        runs.extend(a.zip(b));
                    },
                    Step::Finish { pick } => if let Some(at) = at(&pick, &runs) {
                        let (a, b) = runs.swap_remove(at);
                        fast.finish(a);
                        twin.finish(b);
                    },
                    Step::Abandon { pick } => if let Some(at) = at(&pick, &runs) {
                        runs.swap_remove(at);
                    },
                    Step::Evict { pages } => prop_assert_eq!(fast.index.evict(pages), twin.index.evict(pages)),
                    Step::Forget { tenant, branches, keep } => {
                        let (tenant, tokens) = (TenantId(tenant), prompt(&branches));
                        let (before, free) = (fast.index.pages(), fast.pool.counts().free);
                        let forgotten = fast.index.forget(tenant, &tokens, keep);
                        prop_assert_eq!(forgotten, twin.index.forget(tenant, &tokens, keep));
                        prop_assert_eq!(fast.index.pages(), before - forgotten);
                        prop_assert_eq!(fast.pool.counts().free, free + forgotten);
                    }
                    Step::Clear => prop_assert_eq!(fast.index.clear(), twin.index.clear()),
                }
                prop_assert_eq!(fast.index.pages(), twin.index.pages());
                prop_assert_eq!(fast.pool.counts(), twin.pool.counts());
                for (a, b) in &runs {
                    prop_assert_eq!(&a.tokens, &b.tokens);
                    prop_assert_eq!(a.filled, b.filled);
                }
            }
            drop(runs);
            let counts = fast.pool.counts();
            prop_assert_eq!(counts.free + counts.evictable, counts.total);
            prop_assert_eq!(counts.evictable, fast.index.pages());
            prop_assert_eq!(fast.index.evict(usize::MAX), counts.evictable, "every evictable page can be evicted");
            prop_assert_eq!(fast.pool.counts().free, pages);
        }
    }
}
