//! An engine, its text side and a book of sessions, and a client that resends its whole history every time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_models::chat::{Message, Role, ToolCall};
use plimsoll_models::preset::Fallback;
use plimsoll_runtime::budget::{Budget, BudgetConfig, Tokens};
use plimsoll_runtime::compaction::{Cancel, Canceller, CompactionError, CompactionTask, Compactor, FaultPlan, Step};
use plimsoll_runtime::engine::{
    CachePolicy, Engine, EngineConfig, EngineHandle, Event, FinishReason, GenerationRequest, Purpose, RequestIds,
    SamplingParams, TenantId, Terminal, TokenOut, Usage,
};
use plimsoll_runtime::model_text::{Conversation, Ending, ModelText, SimulatedText};
use plimsoll_runtime::sessions::{
    Asked, CompactionRecord, History, LiveTokens, OpenSession, Session, SessionBook, Trigger,
};
use plimsoll_runtime::simulated::{SimulatedExecutor, SimulatedLimits, SimulationScript};
use serde_json::{Map, json};

pub const ME: TenantId = TenantId(7);
pub const WINDOW: usize = 65536;

/// See the module's text.
pub struct Desk {
    pub compactor: Compactor,
    pub book: SessionBook,
    pub reply_cap: u32,
}

/// One answered request.
pub struct Answer {
    pub text: String,
    pub usage: Usage,
    pub tokens: Vec<TokenOut>,
    pub prompt: Vec<u32>,
    pub finish: Option<FinishReason>,
    pub session: Arc<Session>,
}

impl Desk {
    /// With the simulated engine, which says `replies` in order.
    pub fn scripted(replies: &[&str]) -> Self {
        Self::with_book(replies, SessionBook::in_memory())
    }

    pub fn with_book(replies: &[&str], book: SessionBook) -> Self {
        Self::simulated(replies, book, SimulatedLimits::for_window(WINDOW))
    }

    /// With so many pages in the pool.
    pub fn with_pages(replies: &[&str], pages: usize) -> Self {
        let limits = SimulatedLimits { pages, ..SimulatedLimits::for_window(WINDOW) };
        Self::simulated(replies, SessionBook::in_memory(), limits)
    }

    fn simulated(replies: &[&str], book: SessionBook, limits: SimulatedLimits) -> Self {
        let script =
            json!({"model": "m", "dialect": "hermes", "window": WINDOW, "replies": replies, "default": "Done."});
        let script = SimulationScript::parse(&script.to_string()).unwrap();
        let executor = SimulatedExecutor::new(&script, limits);
        let engine = Engine::start(Box::new(executor), EngineConfig::default());
        let text = Arc::new(SimulatedText::new("hermes").unwrap());
        Self::new(engine, text, WINDOW as u32, book)
    }

    pub fn new(engine: EngineHandle, text: Arc<dyn ModelText>, window: u32, book: SessionBook) -> Self {
        let budget = Arc::new(Budget::resolve(Some(Tokens(window)), &BudgetConfig::default()).unwrap());
        let compactor = Compactor {
            engine,
            text,
            budget,
            fallback: Fallback::None,
            guarded: false,
            ids: RequestIds::default(),
            faults: FaultPlan::default(),
        };
        Self { compactor, book, reply_cap: 400 }
    }

    pub fn pausing(mut self, step: Step, pause: Duration) -> Self {
        self.compactor.faults.pause = Some((step, pause));
        self
    }

    pub fn failing(mut self, step: Step) -> Self {
        self.compactor.faults.fail = Some(step);
        self
    }

    pub fn engine(&self) -> &EngineHandle {
        &self.compactor.engine
    }

    pub fn open(&self, messages: &[Message]) -> OpenSession {
        self.book.session(Asked { tenant: ME, model: "m", name: None, messages })
    }

    pub fn history(&self, messages: &[Message]) -> History {
        let open = self.open(messages);
        open.session.history(messages, &open.links)
    }

    pub fn render(&self, history: &History, ending: Ending) -> Vec<u32> {
        let conversation = Conversation {
            messages: &history.messages,
            tools: &[],
            variables: &Map::new(),
            spoken: &history.spoken,
            ending,
        };
        self.compactor.text.render(conversation).unwrap().tokens
    }

    /// Runs a prompt by itself.
    pub async fn run(&self, prompt: Vec<u32>, cache: CachePolicy) -> (Vec<TokenOut>, Usage, Option<FinishReason>) {
        self.run_up_to(prompt, cache, self.reply_cap).await
    }

    /// The same with a cap of its own.
    pub async fn run_capped(&self, prompt: Vec<u32>, cap: u32) -> (Vec<TokenOut>, Usage, Option<FinishReason>) {
        self.run_up_to(prompt, CachePolicy::Default, cap).await
    }

    async fn run_up_to(
        &self,
        prompt: Vec<u32>,
        cache: CachePolicy,
        reply_cap: u32,
    ) -> (Vec<TokenOut>, Usage, Option<FinishReason>) {
        let mut generation = self.engine().submit(GenerationRequest {
            id: self.compactor.ids.next(),
            tenant: ME,
            prompt,
            reply_cap,
            reserve_beyond: 0,
            n: 1,
            sampling: SamplingParams { temperature: 0.0, logprobs: Some(5), ..SamplingParams::default() },
            end_tokens: self.compactor.text.end_tokens().to_vec(),
            min_tokens: 0,
            ignore_end: false,
            banned: self.compactor.text.banned().to_vec(),
            cache,
            purpose: Purpose::Reply,
            guide: None,
        });
        let (mut tokens, mut finish) = (Vec::new(), None);
        while let Some(event) = generation.next().await {
            match event {
                Event::Token { token, .. } => tokens.push(token),
                Event::ChoiceFinished { reason, .. } => finish = Some(reason),
                Event::Done(Terminal::Finished(usage)) => return (tokens, usage, finish),
                Event::Done(other) => panic!("{other:?}"),
                _ => {}
            }
        }
        panic!("a generation ends with its terminal");
    }

    /// The client's next request: the whole history, answered, and the answer appended to it.
    pub async fn ask(&self, messages: &mut Vec<Message>) -> Answer {
        let open = self.open(messages);
        let history = open.session.history(messages, &open.links);
        let prompt = self.render(&history, Ending::Reply);
        let (tokens, usage, finish) = self.run(prompt.clone(), CachePolicy::Default).await;
        let ids: Vec<u32> = tokens.iter().map(|token| token.token).collect();
        let text = self.compactor.text.decode(&ids);
        messages.push(Message::text(Role::Assistant, text.clone()));
        let live = LiveTokens { tokens: Arc::new([&prompt[..], &ids].concat()), closed: false };
        self.book.settle_reply(&open, messages, Some((ids.into(), live)));
        Answer { text, usage, tokens, prompt, finish, session: open.session.clone() }
    }

    pub fn task(&self, messages: &[Message], trigger: Trigger) -> CompactionTask {
        let open = self.open(messages);
        CompactionTask {
            session: open.session.clone(),
            messages: Arc::new(messages.to_vec()),
            links: Arc::new(open.links.clone()),
            tools: Arc::default(),
            variables: Arc::default(),
            trigger,
            instructions: None,
        }
    }

    pub async fn compact(&self, messages: &[Message]) -> Result<CompactionRecord, CompactionError> {
        let (_canceller, cancel) = Canceller::new();
        self.compact_until(messages, cancel).await
    }

    pub async fn compact_until(
        &self,
        messages: &[Message],
        cancel: Cancel,
    ) -> Result<CompactionRecord, CompactionError> {
        let task = self.task(messages, Trigger::Hand);
        let lock = task.session.try_compaction_lock().ok_or(CompactionError::Busy)?;
        self.compactor.compact(&lock, task, cancel).await
    }
}

pub fn user(text: impl Into<String>) -> Message {
    Message::text(Role::User, text)
}

pub fn call(name: &str, arguments: &str) -> Message {
    let call = ToolCall { id: "c".into(), name: name.into(), arguments: arguments.into() };
    Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "") }
}

pub fn result(text: impl Into<String>) -> Message {
    Message { tool_call_id: Some("c".into()), ..Message::text(Role::Tool, text) }
}

/// A store's thread ends with the last handle, a moment later.
pub fn opened(folder: &Path) -> SessionBook {
    for _ in 0..500 {
        if let Ok((book, _)) = SessionBook::open(folder) {
            return book;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the store was not let go of");
}
