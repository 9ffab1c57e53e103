//! Reference-counted K/V pages and promises of pages.
//!
//! Owns the answer to "who holds page 17, and how many pages may still be promised". It never touches the bytes of
//! a page (an executor owns those) and knows nothing of requests.
//!
//! Three kinds of hold exist, each a value that gives its hold back when it is dropped, so that a page can neither
//! be freed twice nor forgotten:
//! - [`PageRef`]: a sequence (or anyone else) reads or writes the page. Cloning it is sharing.
//! - [`CachedPage`]: the prefix index remembers what the page holds. A page with no other hold is *evictable*: it
//!   counts as free, because the index can be asked to let go of it.
//! - [`Reservation`]: a promise of pages that are not taken yet. `free + evictable >= promised` holds whenever a page is
//!   taken, so taking a promised page cannot fail: whoever starts to read a cached page (which is then no longer
//!   evictable) asks for a reservation, and lets go of the page again if that is refused.
//!
//! The pool lives on the engine thread; its values are deliberately not `Send`. The idea of pages is PagedAttention
//! (Kwon et al. 2023); promising a request's full lifetime is this project's budget contract.

#[cfg(test)]
mod naive;
mod page_table;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use plimsoll_kernels::PageIndex;
use serde::Serialize;

pub use page_table::{PageCopy, PageTable};

/// How many pages are where. `total = free + evictable + in use`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageCounts {
    /// Pages of the pool.
    pub total: usize,
    /// Held by nobody.
    pub free: usize,
    /// Held by the prefix index alone.
    pub evictable: usize,
    /// Promised and not taken yet; a part of `free + evictable`.
    pub promised: usize,
}

impl PageCounts {
    /// Pages that may still be promised.
    pub const fn available(&self) -> usize {
        (self.free + self.evictable).saturating_sub(self.promised)
    }

    /// Pages held by someone other than the prefix index.
    pub const fn in_use(&self) -> usize {
        self.total - self.free - self.evictable
    }
}

/// Who lets go of cached pages when the free ones are used up: the prefix index.
pub trait Evict {
    /// Lets go of up to `pages` evictable pages, least recently used first; returns how many became free. Returns
    /// less than `pages` only if fewer are evictable.
    fn evict(&mut self, pages: usize) -> usize;
}

#[derive(Debug)]
struct Holds {
    /// Holds per page, the index's included.
    refs: Vec<u32>,
    /// Whether the index is among the holders.
    cached: Vec<bool>,
    /// Last in, first out: a page that was just freed is likely still in the processor's caches.
    free: Vec<PageIndex>,
    evictable: usize,
    promised: usize,
}

impl Holds {
    fn retain(&mut self, page: PageIndex) {
        let slot = page as usize;
        if self.cached[slot] && self.refs[slot] == 1 {
            self.evictable -= 1;
        }
        self.refs[slot] += 1;
    }

    fn release(&mut self, page: PageIndex) {
        let slot = page as usize;
        self.refs[slot] -= 1;
        match self.refs[slot] {
            0 => self.free.push(page),
            1 if self.cached[slot] => self.evictable += 1,
            _ => {}
        }
    }
}

/// The pages of one device; see the module's text. Clones are handles to the same pool.
#[derive(Clone)]
pub struct PagePool {
    holds: Rc<RefCell<Holds>>,
}

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PagePool").field(&self.counts()).finish()
    }
}

impl PagePool {
    /// A pool of `pages` free pages, numbered from 0.
    pub fn new(pages: usize) -> Self {
        let count = PageIndex::try_from(pages).expect("a page store has fewer pages than a page number can count");
        let holds = Holds {
            refs: vec![0; pages],
            cached: vec![false; pages],
            free: (0..count).rev().collect(),
            evictable: 0,
            promised: 0,
        };
        Self { holds: Rc::new(RefCell::new(holds)) }
    }

    /// How many pages are where.
    pub fn counts(&self) -> PageCounts {
        let holds = self.holds.borrow();
        PageCounts {
            total: holds.refs.len(),
            free: holds.free.len(),
            evictable: holds.evictable,
            promised: holds.promised,
        }
    }

    /// Promises `pages` pages, or `None` if that promise and all earlier ones could not be kept together.
    pub fn reserve(&self, pages: usize) -> Option<Reservation> {
        let counts = self.counts();
        if counts.free + counts.evictable < counts.promised + pages {
            return None;
        }
        self.holds.borrow_mut().promised += pages;
        Some(Reservation { pool: self.clone(), left: pages })
    }
}

/// Pages that were promised and are not taken yet. What is left of it is given back when it is dropped.
#[must_use = "a dropped reservation promises nothing"]
#[derive(Debug)]
pub struct Reservation {
    pool: PagePool,
    left: usize,
}

impl Reservation {
    /// Pages that may still be taken.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Gives back what is promised beyond `left` pages.
    pub fn shrink_to(&mut self, left: usize) {
        let spare = self.left.saturating_sub(left);
        self.pool.holds.borrow_mut().promised -= spare;
        self.left -= spare;
    }

    /// Takes one promised page, its contents undefined; cached pages are evicted if no page is free.
    ///
    /// # Panics
    /// If nothing is left of the promise, or if `cache` refuses to let go of a page that counts as evictable: both
    /// are broken invariants of the bookkeeping.
    pub fn take(&mut self, cache: &mut impl Evict) -> PageRef {
        assert!(self.left > 0, "a sequence takes no more pages than it was promised");
        if self.pool.counts().free == 0 {
            cache.evict(1);
        }
        let mut holds = self.pool.holds.borrow_mut();
        let page = holds.free.pop().expect("promised pages are free or evictable");
        holds.refs[page as usize] = 1;
        holds.promised -= 1;
        self.left -= 1;
        drop(holds);
        PageRef { pool: self.pool.clone(), page }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.holds.borrow_mut().promised -= self.left;
    }
}

/// A hold on one page. Cloning it shares the page, dropping it lets go.
pub struct PageRef {
    pool: PagePool,
    page: PageIndex,
}

impl PageRef {
    /// The page's place in the page store.
    pub fn index(&self) -> PageIndex {
        self.page
    }

    /// Whether anyone else holds the page too; a shared page is never written.
    pub fn is_shared(&self) -> bool {
        self.pool.holds.borrow().refs[self.page as usize] > 1
    }

    /// Adds the prefix index's hold.
    ///
    /// # Panics
    /// If the index holds the page already: a page has one place in the index.
    pub fn cache(&self) -> CachedPage {
        let mut holds = self.pool.holds.borrow_mut();
        let slot = self.page as usize;
        assert!(!holds.cached[slot], "a page has one place in the prefix index");
        holds.refs[slot] += 1;
        holds.cached[slot] = true;
        drop(holds);
        CachedPage { pool: self.pool.clone(), page: self.page }
    }
}

impl Clone for PageRef {
    fn clone(&self) -> Self {
        self.pool.holds.borrow_mut().retain(self.page);
        Self { pool: self.pool.clone(), page: self.page }
    }
}

impl Drop for PageRef {
    fn drop(&mut self) {
        self.pool.holds.borrow_mut().release(self.page);
    }
}

impl fmt::Debug for PageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageRef({})", self.page)
    }
}

/// The prefix index's hold on one page.
pub struct CachedPage {
    pool: PagePool,
    page: PageIndex,
}

impl CachedPage {
    /// The page's place in the page store.
    pub fn index(&self) -> PageIndex {
        self.page
    }

    /// Whether nobody but the index holds the page.
    pub fn is_evictable(&self) -> bool {
        self.pool.holds.borrow().refs[self.page as usize] == 1
    }

    /// A hold for someone who reads the page; while it lives the page is not evictable.
    pub fn share(&self) -> PageRef {
        self.pool.holds.borrow_mut().retain(self.page);
        PageRef { pool: self.pool.clone(), page: self.page }
    }
}

impl Drop for CachedPage {
    fn drop(&mut self) {
        let mut holds = self.pool.holds.borrow_mut();
        let slot = self.page as usize;
        if holds.refs[slot] == 1 {
            holds.evictable -= 1;
        }
        holds.cached[slot] = false;
        holds.release(self.page);
    }
}

impl fmt::Debug for CachedPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CachedPage({})", self.page)
    }
}

#[cfg(test)]
mod tests {
    use super::naive::NaivePool;
    use super::*;
    use proptest::prelude::*;

    /// A stand-in for the prefix index: a list of cached pages, oldest first.
    #[derive(Default)]
    struct Shelf(Vec<CachedPage>);

    impl Evict for Shelf {
        fn evict(&mut self, pages: usize) -> usize {
            let mut freed = 0;
            self.0.retain(|page| {
                let goes = freed < pages && page.is_evictable();
                freed += usize::from(goes);
                !goes
            });
            freed
        }
    }

    #[test]
    fn a_page_is_free_again_after_its_last_holder_lets_go() {
        let pool = PagePool::new(2);
        let mut promise = pool.reserve(1).unwrap();
        let page = promise.take(&mut Shelf::default());
        let second = page.clone();
        assert!(page.is_shared());
        drop(page);
        assert!(!second.is_shared());
        assert_eq!(pool.counts().free, 1);
        drop(second);
        assert_eq!(pool.counts().free, 2);
    }

    #[test]
    fn a_promise_is_kept_although_others_ask() {
        let pool = PagePool::new(4);
        let promise = pool.reserve(3).unwrap();
        assert!(pool.reserve(2).is_none());
        let _rest = pool.reserve(1).unwrap();
        assert_eq!(pool.counts().available(), 0);
        drop(promise);
        assert_eq!(pool.counts().available(), 3);
    }

    #[test]
    fn a_promise_that_shrinks_gives_the_rest_to_others() {
        let pool = PagePool::new(4);
        let mut promise = pool.reserve(4).unwrap();
        promise.shrink_to(5);
        assert_eq!(promise.left(), 4);
        promise.shrink_to(1);
        assert_eq!((promise.left(), pool.counts().available()), (1, 3));
    }

    #[test]
    fn cached_pages_count_as_available_until_someone_reads_them() {
        let pool = PagePool::new(1);
        let mut shelf = Shelf::default();
        let page = pool.reserve(1).unwrap().take(&mut shelf);
        shelf.0.push(page.cache());
        assert_eq!(pool.counts().available(), 0);
        drop(page);
        assert_eq!(pool.counts().available(), 1);
        let reader = shelf.0[0].share();
        assert_eq!(pool.counts().available(), 0);
        drop(reader);
        let taken = pool.reserve(1).unwrap().take(&mut shelf);
        assert!(shelf.0.is_empty());
        assert_eq!(taken.index(), 0);
    }

    #[test]
    #[should_panic(expected = "no more pages than it was promised")]
    fn taking_more_than_was_promised_is_a_broken_invariant() {
        let pool = PagePool::new(4);
        let mut promise = pool.reserve(1).unwrap();
        let _page = promise.take(&mut Shelf::default());
        let _second = promise.take(&mut Shelf::default());
    }

    proptest! {
        #[test]
        fn the_pool_counts_like_its_naive_twin(total in 1usize..12, steps in prop::collection::vec((0u8..7, any::<prop::sample::Index>(), 0usize..5), 0..300)) {
            let pool = PagePool::new(total);
            let mut twin = NaivePool::new(total);
            let mut shelf = Shelf::default();
            let mut refs: Vec<PageRef> = Vec::new();
            let mut promises: Vec<Reservation> = Vec::new();
            for (action, pick, amount) in steps {
                match action {
                    0 => match pool.reserve(amount) {
                        Some(promise) => {
                            prop_assert!(twin.available() >= amount);
                            twin.promised += amount;
                            promises.push(promise);
                        }
                        None => prop_assert!(twin.available() < amount),
                    },
                    1 if !promises.is_empty() => {
                        let at = pick.index(promises.len());
                        if promises[at].left() > 0 {
                            let page = promises[at].take(&mut shelf);
                            // Whatever the shelf no longer holds was evicted to make room.
                            twin.cached.retain(|p| shelf.0.iter().any(|c| c.index() == *p));
                            prop_assert!(twin.holders(page.index()) == 0, "a page that someone holds was given out");
                            twin.refs.push(page.index());
                            twin.promised -= 1;
                            refs.push(page);
                        }
                    }
                    2 if !refs.is_empty() => {
                        let copy = refs[pick.index(refs.len())].clone();
                        twin.refs.push(copy.index());
                        refs.push(copy);
                    }
                    3 if !refs.is_empty() => {
                        let gone = refs.swap_remove(pick.index(refs.len()));
                        twin.drop_ref(gone.index());
                    }
                    4 if !refs.is_empty() => {
                        let page = &refs[pick.index(refs.len())];
                        if !twin.cached.contains(&page.index()) {
                            twin.cached.push(page.index());
                            shelf.0.push(page.cache());
                        }
                    }
                    5 if !shelf.0.is_empty() => {
                        let at = pick.index(shelf.0.len());
                        let page = shelf.0[at].index();
                        // Forgetting a page that others hold keeps every promise; so does forgetting an evictable one.
                        twin.cached.retain(|p| *p != page);
                        drop(shelf.0.remove(at));
                    }
                    6 if !shelf.0.is_empty() => {
                        let page = &shelf.0[pick.index(shelf.0.len())];
                        // A reader may come only where the promises stay covered, as admission checks.
                        if !page.is_evictable() || pool.counts().available() > 0 {
                            twin.refs.push(page.index());
                            refs.push(page.share());
                        }
                    }
                    _ => {}
                }
                prop_assert_eq!(pool.counts(), twin.counts());
                for page in &refs {
                    prop_assert_eq!(page.is_shared(), twin.holders(page.index()) > 1);
                }
            }
            drop((refs, promises, shelf));
            prop_assert_eq!(pool.counts(), PageCounts { total, free: total, evictable: 0, promised: 0 });
        }
    }
}
