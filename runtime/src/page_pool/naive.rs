//! The page pool's obviously right twin: a list of holds that is counted afresh for every question.
//!
//! The oracle of the property test beside it; never used in production.
use plimsoll_kernels::PageIndex;

use super::PageCounts;

pub(super) struct NaivePool {
    total: usize,
    /// One entry per living `PageRef`.
    pub refs: Vec<PageIndex>,
    /// One entry per living `CachedPage`.
    pub cached: Vec<PageIndex>,
    pub promised: usize,
}

impl NaivePool {
    pub fn new(total: usize) -> Self {
        Self { total, refs: Vec::new(), cached: Vec::new(), promised: 0 }
    }

    pub fn holders(&self, page: PageIndex) -> usize {
        self.refs.iter().chain(&self.cached).filter(|p| **p == page).count()
    }

    pub fn drop_ref(&mut self, page: PageIndex) {
        let at = self.refs.iter().position(|p| *p == page).expect("the page was held");
        self.refs.remove(at);
    }

    pub fn available(&self) -> usize {
        self.counts().available()
    }

    pub fn counts(&self) -> PageCounts {
        let pages = 0..self.total as PageIndex;
        PageCounts {
            total: self.total,
            free: pages.clone().filter(|p| self.holders(*p) == 0).count(),
            evictable: pages.filter(|p| self.cached.contains(p) && !self.refs.contains(p)).count(),
            promised: self.promised,
        }
    }
}
