//! The pages of one sequence, in order, and the copy-on-write rule.
//!
//! Owns a sequence's holds and the plain array of page numbers that kernels read. A shared page is never written:
//! before rows are written, [`PageTable::prepare`] swaps a shared, partly filled last page for a page of its own and
//! says which copy the executor must make. It never copies bytes itself.

use plimsoll_kernels::{PAGE_TOKENS, PageIndex};

use super::{Evict, PageRef, Reservation};

/// A copy that the executor must make before the next step.
#[must_use = "the page's contents are undefined until the copy is made"]
#[derive(Debug)]
pub struct PageCopy {
    /// Held until the copy is made, so that its contents stay.
    source: PageRef,
    target: PageIndex,
}

impl PageCopy {
    /// The page to copy.
    pub fn from(&self) -> PageIndex {
        self.source.index()
    }

    /// The page to overwrite.
    pub fn to(&self) -> PageIndex {
        self.target
    }
}

/// The pages of one sequence; entry `i` holds positions `i * PAGE_TOKENS ..`. A clone shares every page.
#[derive(Clone, Debug, Default)]
pub struct PageTable {
    holds: Vec<PageRef>,
    indices: Vec<PageIndex>,
}

impl PageTable {
    /// A table that starts with shared pages.
    pub fn from_shared(holds: Vec<PageRef>) -> Self {
        let indices = holds.iter().map(PageRef::index).collect();
        Self { holds, indices }
    }

    /// Page numbers in order.
    pub fn indices(&self) -> &[PageIndex] {
        &self.indices
    }

    /// Makes positions `start .. end` writable, where `start` positions are filled: a shared, partly filled page is
    /// swapped for one of its own (the returned copy must then be made), and pages are taken from `promise` until
    /// `end` positions are covered. Whole shared pages before `start` stay shared.
    pub fn prepare(
        &mut self,
        start: usize,
        end: usize,
        promise: &mut Reservation,
        cache: &mut impl Evict,
    ) -> Option<PageCopy> {
        debug_assert!(start <= end && start <= self.holds.len() * PAGE_TOKENS);
        let mut copy = None;
        let partial = start / PAGE_TOKENS;
        if !start.is_multiple_of(PAGE_TOKENS) && start < end && self.holds[partial].is_shared() {
            let own = promise.take(cache);
            self.indices[partial] = own.index();
            let target = own.index();
            let source = std::mem::replace(&mut self.holds[partial], own);
            copy = Some(PageCopy { source, target });
        }
        while self.holds.len() * PAGE_TOKENS < end {
            let page = promise.take(cache);
            self.indices.push(page.index());
            self.holds.push(page);
        }
        copy
    }

    /// Whether `others`, which hold the same tokens, may take the place of these pages one by one: every page that is
    /// given up becomes free, or is the same page. A page that someone else reads would stay in use, and the page in its
    /// place may be promised.
    pub fn may_exchange(&self, others: &[PageRef]) -> bool {
        self.holds.iter().zip(others).all(|(own, other)| own.index() == other.index() || !own.is_shared())
    }

    /// Lets `change` replace holds by others on pages with the same contents, as the prefix index does.
    pub fn exchange(&mut self, change: impl FnOnce(&mut [PageRef])) {
        change(&mut self.holds);
        self.indices.clear();
        self.indices.extend(self.holds.iter().map(PageRef::index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_pool::PagePool;

    struct NothingCached;

    impl Evict for NothingCached {
        fn evict(&mut self, _pages: usize) -> usize {
            0
        }
    }

    #[test]
    fn a_fork_copies_the_partial_page_once_and_the_last_writer_keeps_the_original() {
        let pool = PagePool::new(8);
        let mut promise = pool.reserve(8).unwrap();
        let mut parent = PageTable::default();
        assert!(parent.prepare(0, PAGE_TOKENS + 5, &mut promise, &mut NothingCached).is_none());
        let before = parent.indices().to_vec();
        let mut fork = parent.clone();

        let start = PAGE_TOKENS + 5;
        let copy = fork.prepare(start, start + 1, &mut promise, &mut NothingCached).unwrap();
        assert_eq!(copy.from(), before[1]);
        assert_eq!(copy.to(), fork.indices()[1]);
        assert_ne!(copy.to(), before[1]);
        assert_eq!(fork.indices()[0], before[0]);
        drop(copy);

        assert!(parent.prepare(start, start + 1, &mut promise, &mut NothingCached).is_none());
        assert_eq!(parent.indices(), before);
        drop((parent, fork, promise));
        assert_eq!(pool.counts().free, 8);
    }

    #[test]
    fn pages_may_be_exchanged_where_what_is_given_up_becomes_free() {
        let pool = PagePool::new(8);
        let mut promise = pool.reserve(4).unwrap();
        let [mut table, mut other] = [PageTable::default(), PageTable::default()];
        assert!(table.prepare(0, 2 * PAGE_TOKENS, &mut promise, &mut NothingCached).is_none());
        assert!(other.prepare(0, 2 * PAGE_TOKENS, &mut promise, &mut NothingCached).is_none());
        assert!(table.may_exchange(&other.holds));
        let reader = table.holds[1].clone();
        assert!(!table.may_exchange(&other.holds));
        other.holds[1] = reader;
        assert!(table.may_exchange(&other.holds), "the same page takes its own place");
    }

    #[test]
    fn a_shared_page_that_is_full_is_never_copied() {
        let pool = PagePool::new(4);
        let mut promise = pool.reserve(4).unwrap();
        let mut parent = PageTable::default();
        assert!(parent.prepare(0, PAGE_TOKENS, &mut promise, &mut NothingCached).is_none());
        let mut fork = parent.clone();
        assert!(fork.prepare(PAGE_TOKENS, PAGE_TOKENS + 1, &mut promise, &mut NothingCached).is_none());
        assert_eq!(fork.indices()[0], parent.indices()[0]);
        assert_eq!(fork.indices().len(), 2);
        assert_eq!(promise.left(), 2);
    }
}
