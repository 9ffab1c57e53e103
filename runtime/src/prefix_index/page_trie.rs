//! The prefix index as a trie whose nodes are pages.
//!
//! A node holds the tokens of one page; a node with [`PAGE_TOKENS`] tokens may have children, a shorter one is a leaf.
//! Children are kept in lexicographic order of their tokens: the child with the longest common prefix is then a
//! neighbour of the tokens asked for, so each page of a lookup costs one search in a sorted map. Leaves are kept in
//! order of their last use.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::rc::Rc;

use plimsoll_kernels::PAGE_TOKENS;

use super::{CachedPrefix, PrefixIndex, common_prefix, may_exchange};
use crate::engine::TenantId;
use crate::page_pool::{CachedPage, Evict, PageRef};

type NodeId = usize;
type Children = BTreeMap<Rc<[u32]>, NodeId>;

/// Whose child a node is.
#[derive(Clone, Copy, Debug)]
enum Parent {
    Root(TenantId),
    Node(NodeId),
}

#[derive(Debug)]
struct Node {
    parent: Parent,
    tokens: Rc<[u32]>,
    page: CachedPage,
    children: Children,
    /// The operation that used the node last. Uses go from the root down, so no node is older than its descendants.
    stamp: u64,
}

/// The prefix index in use; see the module's text.
#[derive(Debug, Default)]
pub struct PageTrie {
    /// First pages of each tenant; no entry is empty.
    roots: HashMap<TenantId, Children>,
    /// `None` where a node was removed; its place is in `vacant`.
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    /// Nodes without children, least recently used first.
    leaves: BTreeSet<(u64, NodeId)>,
    clock: u64,
}

impl PageTrie {
    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id].as_ref().expect("ids of removed nodes are not kept")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id].as_mut().expect("ids of removed nodes are not kept")
    }

    fn children(&self, of: Parent) -> Option<&Children> {
        match of {
            Parent::Root(tenant) => self.roots.get(&tenant),
            Parent::Node(id) => Some(&self.node(id).children),
        }
    }

    /// The child that shares the longest prefix with `wanted`, and its length. In lexicographic order no other child
    /// shares more than the neighbours of `wanted` do.
    fn closest_child(&self, of: Parent, wanted: &[u32]) -> Option<(NodeId, usize)> {
        let children = self.children(of)?;
        let below = children.range::<[u32], _>((Bound::Unbounded, Bound::Included(wanted))).next_back();
        let above = children.range::<[u32], _>((Bound::Excluded(wanted), Bound::Unbounded)).next();
        let shared = |(tokens, id): (&Rc<[u32]>, &NodeId)| (*id, common_prefix(tokens, wanted));
        match (below.map(shared), above.map(shared)) {
            (Some(below), Some(above)) if above.1 > below.1 => Some(above),
            (below, above) => below.or(above),
        }
    }

    fn has_evictable_ancestor(&self, id: NodeId) -> bool {
        let mut at = self.node(id);
        while let Parent::Node(above) = at.parent {
            at = self.node(above);
            if at.page.is_evictable() {
                return true;
            }
        }
        false
    }

    fn touch(&mut self, id: NodeId) {
        let clock = self.clock;
        let node = self.node_mut(id);
        let old = std::mem::replace(&mut node.stamp, clock);
        if self.leaves.remove(&(old, id)) {
            self.leaves.insert((clock, id));
        }
    }

    fn add(&mut self, parent: Parent, tokens: &[u32], page: CachedPage) -> NodeId {
        let tokens: Rc<[u32]> = tokens.into();
        let id = self.vacant.pop().unwrap_or(self.nodes.len());
        let stamp = self.clock;
        let node = Node { parent, tokens: tokens.clone(), page, children: Children::new(), stamp };
        match self.nodes.get_mut(id) {
            Some(place) => *place = Some(node),
            None => self.nodes.push(Some(node)),
        }
        self.leaves.insert((stamp, id));
        match parent {
            Parent::Root(tenant) => {
                self.roots.entry(tenant).or_default().insert(tokens, id);
            }
            Parent::Node(above) => {
                let node = self.node_mut(above);
                node.children.insert(tokens, id);
                let stamp = node.stamp;
                self.leaves.remove(&(stamp, above));
            }
        }
        id
    }

    /// Removes a leaf; its parent may become one.
    fn remove(&mut self, id: NodeId) {
        let node = self.nodes[id].take().expect("ids of removed nodes are not kept");
        debug_assert!(node.children.is_empty(), "only leaves are removed");
        self.leaves.remove(&(node.stamp, id));
        self.vacant.push(id);
        match node.parent {
            Parent::Root(tenant) => {
                let children = self.roots.get_mut(&tenant).expect("a first page has a root");
                children.remove(&node.tokens);
                if children.is_empty() {
                    self.roots.remove(&tenant);
                }
            }
            Parent::Node(above) => {
                let parent = self.node_mut(above);
                parent.children.remove(&node.tokens);
                if parent.children.is_empty() {
                    let stamp = parent.stamp;
                    self.leaves.insert((stamp, above));
                }
            }
        }
    }
}

impl Evict for PageTrie {
    fn evict(&mut self, pages: usize) -> usize {
        let mut freed = 0;
        while freed < pages {
            // Leaves in use were used lately, so the search rarely passes any.
            let evictable = self.leaves.iter().find(|(_, id)| self.node(*id).page.is_evictable());
            let in_the_way = || self.leaves.iter().find(|(_, id)| self.has_evictable_ancestor(*id));
            match evictable.or_else(in_the_way) {
                Some(&(_, id)) => {
                    freed += usize::from(self.node(id).page.is_evictable());
                    self.remove(id);
                }
                None => break,
            }
        }
        freed
    }
}

impl PrefixIndex for PageTrie {
    fn lookup(&mut self, tenant: TenantId, tokens: &[u32]) -> CachedPrefix {
        self.clock += 1;
        let mut found = CachedPrefix::default();
        let mut parent = Parent::Root(tenant);
        while found.tokens < tokens.len() {
            let rest = &tokens[found.tokens..];
            let wanted = &rest[..rest.len().min(PAGE_TOKENS)];
            let Some((child, shared @ 1..)) = self.closest_child(parent, wanted) else { break };
            self.touch(child);
            found.pages.push(self.node(child).page.share());
            found.tokens += shared;
            if shared < PAGE_TOKENS {
                break;
            }
            parent = Parent::Node(child);
        }
        found
    }

    fn insert(&mut self, tenant: TenantId, tokens: &[u32], pages: &mut [PageRef]) {
        assert_eq!(pages.len(), tokens.len().div_ceil(PAGE_TOKENS), "every token lies on one of the pages");
        self.clock += 1;
        let mut parent = Parent::Root(tenant);
        for (tokens, page) in tokens.chunks(PAGE_TOKENS).zip(pages) {
            let closest = self.closest_child(parent, tokens);
            let child = match closest {
                Some((child, shared)) if shared == tokens.len() => {
                    self.touch(child);
                    if shared == PAGE_TOKENS && may_exchange(page, &self.node(child).page) {
                        *page = self.node(child).page.share();
                    }
                    child
                }
                _ => {
                    // The page a shorter leaf lies on may be this very page: it has one place in the index.
                    if let Some((child, shared)) = closest
                        && shared == self.node(child).tokens.len()
                    {
                        self.remove(child);
                    }
                    self.add(parent, tokens, page.cache())
                }
            };
            parent = Parent::Node(child);
        }
    }

    fn forget(&mut self, tenant: TenantId, tokens: &[u32], keep: usize) -> usize {
        let mut path = Vec::new();
        let (mut parent, mut at) = (Parent::Root(tenant), 0);
        while at < tokens.len() {
            let rest = &tokens[at..];
            let wanted = &rest[..rest.len().min(PAGE_TOKENS)];
            let Some((child, shared)) = self.closest_child(parent, wanted) else { break };
            if shared < self.node(child).tokens.len() {
                break;
            }
            path.push((at, child));
            at += shared;
            parent = Parent::Node(child);
        }
        let mut forgotten = 0;
        while let Some((base, id)) = path.pop()
            && base >= keep
            && self.node(id).children.is_empty()
            && self.node(id).page.is_evictable()
        {
            self.remove(id);
            forgotten += 1;
        }
        forgotten
    }

    fn clear(&mut self) -> usize {
        let pages = self.pages();
        self.roots.clear();
        self.nodes.clear();
        self.vacant.clear();
        self.leaves.clear();
        pages
    }

    fn pages(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }
}
