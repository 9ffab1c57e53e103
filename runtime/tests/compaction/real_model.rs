//! The same road with SmolLM2: what is fed for a summary, and what stands in the cache afterwards, bit for bit.

use std::path::Path;
use std::sync::Arc;

use plimsoll_kernels::KvType;
use plimsoll_kernels::cpu::{CpuDevice, CpuOptions};
use plimsoll_models::architecture::{self, StepLimits};
use plimsoll_models::chat::{Message, Role};
use plimsoll_models::dialect::Dialect;
use plimsoll_models::gguf::GgufFile;
use plimsoll_models::preset::Fallback;
use plimsoll_models::source::real_model;
use plimsoll_models::template::ChatTemplate;
use plimsoll_models::tokenizer::Tokenizer;
use plimsoll_runtime::engine::{CachePolicy, Engine, EngineConfig, FinishReason};
use plimsoll_runtime::model_executor::ModelExecutor;
use plimsoll_runtime::model_text::{Ending, FileText};
use plimsoll_runtime::sessions::{CompactionState, SessionBook};

use super::desk::{Desk, user};

const WINDOW: usize = 8192;

fn desk(path: &Path) -> Desk {
    let file = GgufFile::open(path).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_gguf(&file).unwrap());
    let template = ChatTemplate::from_gguf(&file, &tokenizer).unwrap().map(Arc::new);
    let dialect = Dialect::of_template(template.as_deref());
    let device = CpuDevice::new(CpuOptions::default()).unwrap();
    let limits = StepLimits { max_rows: 256, max_logits: 16, kv_type: KvType::F16 };
    let model = architecture::load(&file, &device, limits).unwrap();
    let vocab = model.shape().vocab;
    let executor = ModelExecutor::new(device, model, 2 * WINDOW / 16, WINDOW).unwrap();
    let engine = Engine::start(Box::new(executor), EngineConfig::default());
    let text = Arc::new(FileText::new(tokenizer, template, dialect, vocab));
    let mut desk = Desk::new(engine, text, WINDOW as u32, SessionBook::in_memory());
    desk.compactor.fallback = Fallback::Facts;
    desk.reply_cap = 24;
    desk
}

/// What a page of a story says, for a prompt of some length.
fn page(number: usize) -> String {
    format!("Page {number}. The keeper walked up the stairs of the lighthouse and wrote {number} into the book. ")
        .repeat(6)
}

#[tokio::test(flavor = "multi_thread")]
async fn t7_t12_a_real_session_is_compacted_from_its_live_cache_and_its_logits_are_those_of_a_fresh_run() {
    const NAME: &str = "t7_t12_a_real_session_is_compacted_from_its_live_cache_and_its_logits_are_those_of_a_fresh_run";
    let path = match real_model("smollm2-135m-instruct") {
        Ok(path) => path,
        Err(unavailable) => return unavailable.skip(NAME),
    };
    let desk = desk(&path);
    let mut messages = vec![Message::text(Role::System, "You keep the log of a lighthouse. Answer in one sentence.")];
    let mut unread = 0;
    for number in 0..6 {
        messages.push(user(page(number)));
        let answer = desk.ask(&mut messages).await;
        // The last token of a reply that ended by its length was said and never read.
        unread = u32::from(answer.finish == Some(FinishReason::Length));
        if number > 0 {
            assert!(answer.usage.prefilled < 220, "a turn feeds what is new: {:?}", answer.usage);
        }
    }
    messages.push(user("What was on page 3?"));
    let before = desk.engine().status().totals.rows_fed;
    let record = desk.compact(&messages).await.unwrap();
    let fed = desk.engine().status().totals.rows_fed - before;
    assert_eq!(record.state, CompactionState::Replaced);
    assert!(record.live, "{record:?}");
    assert_eq!(record.prefilled_tokens.0, record.instruction_tokens.0 + unread);
    assert_eq!(record.instruction_tokens.0, desk.compactor.instruction_tokens());
    assert!(fed < u64::from(record.tokens_before.0 + record.tokens_after.unwrap().0 + record.summary_tokens.0));

    // What was read again gives the same logits as a prompt that is read for the first time, to the bit.
    let prompt = desk.render(&desk.history(&messages), Ending::Reply);
    let (after, usage, _) = desk.run(prompt.clone(), CachePolicy::Default).await;
    let (fresh, control, _) = desk.run(prompt.clone(), CachePolicy::Bypass).await;
    assert_eq!((control.cached, control.prefilled as usize), (0, prompt.len()));
    assert!(usage.cached as usize > prompt.len() / 2, "{usage:?}");
    let bits = |tokens: &[plimsoll_runtime::engine::TokenOut]| {
        tokens
            .iter()
            .map(|out| {
                let top: Vec<(u32, u32)> = out.top.iter().map(|other| (other.token, other.logprob.to_bits())).collect();
                (out.token, out.logprob.map(f32::to_bits), top)
            })
            .collect::<Vec<_>>()
    };
    assert!(!after.is_empty());
    assert_eq!(bits(&after), bits(&fresh));

    // The cache-bypass control of the summary: nothing cached, everything fed.
    desk.engine().clear_cache().await;
    messages.push(Message::text(Role::Assistant, "It was the keeper."));
    messages.push(user("And then?"));
    let record = desk.compact(&messages).await.unwrap();
    assert!(!record.live);
    assert!(record.prefilled_tokens > record.instruction_tokens);
}
