//! Requests that wait for admission: one line per tenant, served in turn.
//!
//! Bookkeeping only. Within a tenant the order of arrival is kept; between tenants turns go round. The request whose
//! turn it is stays the head until it is admitted or leaves: nobody overtakes it, so a large request cannot starve.

use std::collections::{HashMap, VecDeque};

use super::admission::Lifetime;
use super::handle::Ticket;
use super::ledger::WaitingAccount;
use super::request::{GenerationRequest, TenantId};

#[derive(Debug)]
pub(super) struct Waiting {
    pub ticket: Ticket,
    pub request: GenerationRequest,
    pub lifetime: Lifetime,
    pub account: WaitingAccount,
}

#[derive(Debug, Default)]
pub(super) struct WaitingQueue {
    lines: HashMap<TenantId, VecDeque<Waiting>>,
    /// Tenants with someone in line; the front's turn is next.
    turns: VecDeque<TenantId>,
    len: usize,
}

impl WaitingQueue {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push(&mut self, waiting: Waiting) {
        let tenant = waiting.request.tenant;
        let line = self.lines.entry(tenant).or_default();
        if line.is_empty() {
            self.turns.push_back(tenant);
        }
        line.push_back(waiting);
        self.len += 1;
    }

    /// The request whose turn it is.
    pub fn head(&self) -> Option<&Waiting> {
        self.lines.get(self.turns.front()?)?.front()
    }

    /// Takes the head; the turn goes to the next tenant.
    pub fn pop(&mut self) -> Option<Waiting> {
        let tenant = self.turns.pop_front()?;
        let line = self.lines.get_mut(&tenant)?;
        let waiting = line.pop_front()?;
        self.len -= 1;
        if line.is_empty() {
            self.lines.remove(&tenant);
        } else {
            self.turns.push_back(tenant);
        }
        Some(waiting)
    }

    /// Takes a request out of its line.
    pub fn remove(&mut self, ticket: Ticket) -> Option<Waiting> {
        let place = |line: &VecDeque<Waiting>| line.iter().position(|w| w.ticket == ticket);
        let (tenant, at) = self.lines.iter().find_map(|(tenant, line)| Some((*tenant, place(line)?)))?;
        let line = self.lines.get_mut(&tenant)?;
        let waiting = line.remove(at)?;
        self.len -= 1;
        if line.is_empty() {
            self.lines.remove(&tenant);
            self.turns.retain(|t| *t != tenant);
        }
        Some(waiting)
    }
}
