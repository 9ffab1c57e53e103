//! Requests that run: admitted, prefilled in chunks, forked, decoded side by side, released.
//!
//! Owns the executor, the pages, the prefix index and every running request, and moves them by one step at a time as
//! the scheduler plans it. It takes no commands and knows no queue.
//!
//! The idea of letting requests join and leave the batch at every step is Orca's (Yu et al. 2022).

use std::time::Instant;

use plimsoll_kernels::PAGE_TOKENS;

use super::admission::{Lifetime, most_sequences, shared_prompt};
use super::config::EngineConfig;
use super::guide::Guidance;
use super::handle::Ticket;
use super::ledger::{Ledger, RunningAccount};
use super::request::{CachePolicy, FinishReason, GenerationRequest, Purpose, TenantId, TokenOut};
use super::scheduler::{Prefilling, Scheduler};
use super::sequence::{CacheVersion, Choice, Phase, Running, Sequence};
use super::waiting_queue::Waiting;
use crate::executor::{Executor, ExecutorError, SeqId, Span};
use crate::page_pool::{PageCounts, PagePool, PageTable, Reservation};
use crate::prefix_index::{CachedPrefix, PageTrie, PrefixIndex};
use crate::sampler::Sampler;

/// Room for a request: what of its prompt is cached, and a promise of every other page it may need.
#[derive(Debug)]
pub(super) struct Place {
    prefix: CachedPrefix,
    promise: Reservation,
}

/// Rows of one choice in the step at hand.
#[derive(Clone, Copy, Debug)]
struct Feed {
    request: usize,
    choice: usize,
    rows: usize,
}

/// What ended in a step, and so gave pages back.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub choices: usize,
    pub requests: usize,
}

pub(super) struct ContinuousBatch {
    executor: Box<dyn Executor>,
    scheduler: Scheduler,
    pool: PagePool,
    index: PageTrie,
    version: CacheVersion,
    /// In order of admission.
    running: Vec<Running>,
    most_sequences: usize,
    next_seq: u64,
}

impl ContinuousBatch {
    pub fn new(executor: Box<dyn Executor>, config: &EngineConfig) -> Self {
        let geometry = executor.geometry();
        let step_rows = config.step_rows.clamp(1, geometry.max_rows);
        Self {
            scheduler: Scheduler::new(step_rows, config.stall_limit, config.step_limit),
            pool: PagePool::new(geometry.pages),
            index: PageTrie::default(),
            version: CacheVersion::default(),
            running: Vec::new(),
            most_sequences: most_sequences(geometry, step_rows),
            next_seq: 0,
            executor,
        }
    }

    pub fn executor(&self) -> &dyn Executor {
        &*self.executor
    }

    pub fn most_sequences(&self) -> usize {
        self.most_sequences
    }

    pub fn len(&self) -> usize {
        self.running.len()
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub fn pages(&self) -> PageCounts {
        self.pool.counts()
    }

    /// Forgets all cached prefixes; returns how many pages were held.
    pub fn clear_cache(&mut self) -> usize {
        self.index.clear()
    }

    /// Forgets what is cached of `tokens` behind the first `keep`; returns how many pages came free.
    pub fn forget(&mut self, tenant: TenantId, tokens: &[u32], keep: usize) -> usize {
        self.index.forget(tenant, tokens, keep)
    }

    /// Room for a request, or `None` while it must wait.
    pub fn find_place(&mut self, request: &GenerationRequest, lifetime: Lifetime) -> Option<Place> {
        let sequences: usize = self.running.iter().map(Running::sequences).sum();
        if sequences + request.n as usize > self.most_sequences {
            return None;
        }
        let prefix = match request.cache {
            CachePolicy::Default => self.index.lookup(request.tenant, &request.prompt[..request.prompt.len() - 1]),
            CachePolicy::Bypass => CachedPrefix::default(),
        };
        let pages = lifetime.pages - prefix.full_pages();
        if let Some(promise) = self.pool.reserve(pages) {
            return Some(Place { prefix, promise });
        }
        // Until it is copied, a partly matched page is held beside the page it is copied to. A request that fits only
        // without it does without.
        let prefix = prefix.without_partial();
        self.pool.reserve(pages).map(|promise| Place { prefix, promise })
    }

    /// Starts a request in the room found for it.
    pub fn begin(&mut self, waiting: Waiting, place: Place, ledger: &mut Ledger) {
        let Waiting { ticket, mut request, lifetime, account } = waiting;
        let Place { prefix, promise } = place;
        let account = ledger.admit(account, request.prompt.len(), prefix.tokens);
        let sequence = Sequence {
            id: self.new_seq(),
            tokens: request.prompt.clone(),
            fed: prefix.tokens,
            pages: PageTable::from_shared(prefix.pages),
        };
        let guide = request.guide.take();
        let first = Choice { guide, ..self.choice(0, &request, sequence, &account) };
        let until = shared_prompt(&request);
        let phase = Phase::Prefill { until };
        let (looked_up, choices) = (self.version, vec![first]);
        self.running.push(Running { ticket, request, account, promise, phase, lifetime, looked_up, choices });
        if prefix.tokens == until {
            self.end_prefill(self.running.len() - 1);
        }
    }

    fn new_seq(&mut self) -> SeqId {
        self.next_seq += 1;
        SeqId(self.next_seq)
    }

    fn choice(&self, index: u32, request: &GenerationRequest, sequence: Sequence, account: &RunningAccount) -> Choice {
        let vocab = self.executor.geometry().vocab;
        let sampler = Sampler::new(&request.sampling, index, &request.prompt, &request.banned, vocab);
        Choice { sequence, sampler, guide: None, line: account.open_choice(index), generated: 0 }
    }

    /// The prompt is read: its full pages are cached for others, and the choices part.
    fn end_prefill(&mut self, at: usize) {
        let run = &mut self.running[at];
        let first = &mut run.choices[0];
        // The last, partial page is still written to; it is cached when its choice ends.
        let full = first.sequence.fed / PAGE_TOKENS * PAGE_TOKENS;
        first.sequence.remember(full, &run.request, &mut self.index);
        self.version.0 += 1;
        run.phase = Phase::Decode;
        for index in 1..self.running[at].request.n {
            let id = self.new_seq();
            let run = &self.running[at];
            let fork = run.choices[0].sequence.fork(id);
            let choice = self.choice(index, &run.request, fork, &run.account);
            self.running[at].choices.push(choice);
        }
    }

    /// Runs one step of everything that runs.
    pub fn step(&mut self, ledger: &mut Ledger) -> Result<Ended, ExecutorError> {
        let started = Instant::now();
        self.look_up_again(ledger);
        let feeds = self.plan();
        self.prepare_pages(&feeds);
        let span = |feed: &Feed| {
            let Running { request, choices, .. } = &self.running[feed.request];
            choices[feed.choice].sequence.span(feed.rows, request.purpose)
        };
        let spans: Vec<Span<'_>> = feeds.iter().map(span).collect();
        let wanted = spans.iter().filter(|span| span.logits).count();
        let decodes = feeds.iter().filter(|f| self.running[f.request].phase == Phase::Decode);
        let decodes: usize = decodes.map(|f| f.rows).sum();
        let rows: usize = feeds.iter().map(|f| f.rows).sum();

        let vocab = self.executor.geometry().vocab;
        let logits = self.executor.forward(&spans)?;
        if logits.len() != wanted * vocab {
            let (found, expected) = (logits.len(), wanted * vocab);
            return Err(ExecutorError(format!("{found} logits came back where {expected} were wanted")));
        }
        drop(spans);
        let mut logits = logits.chunks_exact(vocab);
        let mut read = Vec::new();
        let mut ended = Vec::new();
        for feed in &feeds {
            let Running { request, account, phase, choices, .. } = &mut self.running[feed.request];
            let choice = &mut choices[feed.choice];
            let start = choice.sequence.fed;
            choice.sequence.fed += feed.rows;
            if feed.choice == 0 && start < request.prompt.len() && choice.generated == 0 {
                account.fed(feed.rows);
            }
            let all_fed = choice.sequence.pending() == 0;
            if let Phase::Prefill { until } = *phase {
                account.prefill(choice.sequence.fed);
                match request.purpose {
                    Purpose::Reply if choice.sequence.fed == until => read.push(feed.request),
                    Purpose::Warm if all_fed => ended.push((feed.request, choice.sequence.id, None)),
                    Purpose::Reply | Purpose::Warm => {}
                }
            }
            if all_fed && request.purpose == Purpose::Reply {
                let logits = logits.next().expect("as many rows of logits as spans that want them");
                if let Some(reason) = next_token(request, choice, account, logits, ledger) {
                    ended.push((feed.request, choice.sequence.id, Some(reason)));
                }
            }
        }
        for at in read {
            self.end_prefill(at);
        }
        let choices = ended.len();
        let requests = self.end_choices(ended, ledger);

        let took = started.elapsed();
        self.scheduler.observe(rows - decodes, took);
        ledger.totals.steps += 1;
        ledger.totals.rows_fed += rows as u64;
        if decodes > 0 {
            ledger.totals.longest_stall_ms = ledger.totals.longest_stall_ms.max(took.as_millis() as u64);
        }
        Ok(Ended { choices, requests })
    }

    /// Lets requests that still read their prompts share what others have read since, so that requests which come at
    /// once with a common beginning read it once. Only full pages are taken over: for each of them one promised page
    /// is given back or one of its own becomes free, so that every promise stays covered.
    fn look_up_again(&mut self, ledger: &mut Ledger) {
        for run in &mut self.running {
            let Phase::Prefill { until } = run.phase else { continue };
            if run.looked_up == self.version || run.request.cache == CachePolicy::Bypass {
                continue;
            }
            run.looked_up = self.version;
            let sequence = &mut run.choices[0].sequence;
            let found = self.index.lookup(run.request.tenant, &run.request.prompt[..until - 1]).without_partial();
            if found.tokens > sequence.fed && sequence.pages.may_exchange(&found.pages) {
                run.account.found(found.tokens - sequence.fed, ledger);
                run.promise.shrink_to(run.lifetime.pages - found.full_pages());
                sequence.fed = found.tokens;
                sequence.pages = PageTable::from_shared(found.pages);
            }
        }
    }

    /// Which choice feeds how many rows: every decode one, then those with several pending tokens more, then the chunks
    /// the scheduler allows beside them.
    fn plan(&mut self) -> Vec<Feed> {
        let mut feeds = Vec::new();
        let mut prefilling = Vec::new();
        for (at, run) in self.running.iter().enumerate() {
            match run.phase {
                Phase::Decode => {
                    feeds.extend((0..run.choices.len()).map(|choice| Feed { request: at, choice, rows: 1 }));
                }
                Phase::Prefill { until } => {
                    let rows_left = until - run.choices[0].sequence.fed;
                    prefilling.push(Prefilling { request: at, tenant: run.request.tenant, rows_left });
                }
            }
        }
        let mut room = self.scheduler.step_rows().saturating_sub(feeds.len());
        for feed in &mut feeds {
            let pending = self.running[feed.request].choices[feed.choice].sequence.pending();
            let more = (pending - feed.rows).min(room);
            feed.rows += more;
            room -= more;
        }
        let decodes = feeds.iter().map(|feed| feed.rows).sum();
        let chunks = self.scheduler.plan(decodes, &prefilling);
        feeds.extend(chunks.iter().map(|chunk| Feed { request: chunk.request, choice: 0, rows: chunk.rows }));
        feeds
    }

    /// Gives every span of the step pages of its own to write to.
    fn prepare_pages(&mut self, feeds: &[Feed]) {
        for feed in feeds {
            let Running { promise, choices, .. } = &mut self.running[feed.request];
            let Sequence { fed, pages, .. } = &mut choices[feed.choice].sequence;
            if let Some(copy) = pages.prepare(*fed, *fed + feed.rows, promise, &mut self.index) {
                self.executor.copy_page(copy.from(), copy.to());
            }
        }
    }

    /// Ends choices, and the requests that were waiting for them; returns how many those were.
    /// A sequence that was to say nothing ends without a reason.
    fn end_choices(&mut self, ended: Vec<(usize, SeqId, Option<FinishReason>)>, ledger: &mut Ledger) -> usize {
        for (at, seq, reason) in ended {
            let run = &mut self.running[at];
            let gone = run.choices.iter().position(|c| c.sequence.id == seq).expect("a choice ends once");
            let Choice { sequence, line, .. } = run.choices.remove(gone);
            if let Some(reason) = reason {
                line.finish(reason);
            }
            retire(sequence, &run.request, &mut self.index, &mut *self.executor);
        }
        let before = self.running.len();
        for run in self.running.extract_if(.., |run| run.choices.is_empty()) {
            ledger.finish(run.account);
        }
        before - self.running.len()
    }

    /// Ends a request early. What it computed is valid, so it is cached like the rest.
    pub fn cancel(&mut self, ticket: Ticket, ledger: &mut Ledger) {
        if let Some(at) = self.running.iter().position(|run| run.ticket == ticket) {
            let run = self.running.remove(at);
            self.let_go(run, ledger);
        }
    }

    /// Ends all requests early.
    pub fn cancel_all(&mut self, ledger: &mut Ledger) {
        for run in std::mem::take(&mut self.running) {
            self.let_go(run, ledger);
        }
    }

    fn let_go(&mut self, run: Running, ledger: &mut Ledger) {
        for choice in run.choices {
            retire(choice.sequence, &run.request, &mut self.index, &mut *self.executor);
        }
        ledger.cancel(run.account);
    }

    /// Closes all accounts; the executor is not touched, it may be broken.
    pub fn fail_all(&mut self, message: &str, ledger: &mut Ledger) {
        for run in self.running.drain(..) {
            ledger.fail(run.account, message);
        }
    }
}

/// Chooses a choice's next token and tells its reader; the reason if the choice ends with it.
fn next_token(
    request: &GenerationRequest,
    choice: &mut Choice,
    account: &mut RunningAccount,
    logits: &[f32],
    ledger: &mut Ledger,
) -> Option<FinishReason> {
    if choice.guide.is_some() {
        return next_guided(request, choice, account, logits, ledger);
    }
    let forbidden: &[u32] = if choice.generated < request.min_tokens { &request.end_tokens } else { &[] };
    let out = choice.sampler.sample(logits, forbidden);
    let token = out.token;
    if !request.ignore_end && request.end_tokens.contains(&token) {
        return Some(FinishReason::End(token));
    }
    say(request, choice, account, out, ledger)
}

/// The same for a choice with a guide.
fn next_guided(
    request: &GenerationRequest,
    choice: &mut Choice,
    account: &mut RunningAccount,
    logits: &[f32],
    ledger: &mut Ledger,
) -> Option<FinishReason> {
    let guide = choice.guide.as_mut().expect("asked for guided choices only");
    let out = choice.sampler.propose(logits, guide.forbidden());
    match guide.sampled(out.token) {
        Guidance::Keep => {
            choice.sampler.accept(out.token);
            say(request, choice, account, out, ledger)
        }
        Guidance::Replace(tokens) => {
            debug_assert!(!tokens.is_empty(), "a choice always has a pending token");
            tokens.into_iter().find_map(|token| {
                choice.sampler.accept(token);
                say(request, choice, account, TokenOut { token, logprob: None, top: Vec::new() }, ledger)
            })
        }
        Guidance::End => Some(FinishReason::Guided),
    }
}

/// Appends a token and tells its reader; the reason if it is the last one.
fn say(
    request: &GenerationRequest,
    choice: &mut Choice,
    account: &mut RunningAccount,
    out: TokenOut,
    ledger: &mut Ledger,
) -> Option<FinishReason> {
    choice.generated += 1;
    ledger.totals.generated_tokens += 1;
    choice.sequence.tokens.push(out.token);
    choice.line.token(account, out);
    (choice.generated == request.reply_cap).then_some(FinishReason::Length)
}

/// Caches what a sequence has computed and lets go of it.
fn retire(mut sequence: Sequence, request: &GenerationRequest, index: &mut PageTrie, executor: &mut dyn Executor) {
    sequence.remember(sequence.fed, request, index);
    executor.retire(sequence.id);
}
