//! What sessions promise: who is recognised, what a restart finds, and what a broken file does.

use std::fs;
use std::path::Path;

use plimsoll_models::chat::{Message, Role, ToolCall};
use plimsoll_runtime::budget::Tokens;
use plimsoll_runtime::engine::TenantId;
use plimsoll_runtime::sessions::{
    Asked, Checkpoint, CompactionRecord, CompactionState, EffectiveForm, FailureReason, Live, OpenSession, SessionBook,
    SpanRef, StoreError, Trigger,
};

const ME: TenantId = TenantId(1);

fn user(text: &str) -> Message {
    Message::text(Role::User, text)
}

fn assistant(text: &str) -> Message {
    Message::text(Role::Assistant, text)
}

/// System head, a request, a call and its result, an answer, another request.
fn conversation() -> Vec<Message> {
    let mut call = assistant("Let me look.");
    call.tool_calls = vec![ToolCall { id: "c1".into(), name: "read".into(), arguments: r#"{"a": 1, "b": 2}"#.into() }];
    let mut result = Message::text(Role::Tool, "a long result");
    result.tool_call_id = Some("c1".into());
    vec![Message::text(Role::System, "head"), user("fix it"), call, result, assistant("Fixed."), user("and now?")]
}

async fn open(book: &SessionBook, messages: &[Message]) -> OpenSession {
    book.session(Asked { tenant: ME, model: "m", name: None, messages })
}

/// A record of a compaction of the first `turns` turns.
fn record(open: &OpenSession, turns: usize, state: CompactionState) -> CompactionRecord {
    let link = open.links[turns - 1];
    let span = SpanRef { turns: turns as u32, end: link.end, pruned: link.pruned };
    let started = CompactionRecord::started(open.session.id().clone(), "m", Trigger::Hand, span);
    CompactionRecord { state, summary: Some("all is well".into()), summary_tokens: Tokens(3), ..started }
}

fn form(record: &CompactionRecord) -> EffectiveForm {
    EffectiveForm {
        first_request: Some(user("fix it")),
        kept: vec![],
        checkpoint: Checkpoint { id: record.id.clone(), text: "all is well".into() },
        tail: vec![assistant("Fixed.")],
    }
}

async fn replace(open: &OpenSession, turns: usize) {
    let record = record(open, turns, CompactionState::Replaced);
    open.session.replace(&record, &form(&record)).await.unwrap();
}

#[tokio::test]
async fn a_replaced_history_and_its_session_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let messages = conversation();
    let (book, recovery) = SessionBook::open(folder.path()).unwrap();
    assert_eq!((recovery.sessions, recovery.interrupted), (0, 0));
    let first = open(&book, &messages).await;
    replace(&first, 4).await;
    let before = first.session.history(&messages, &first.links);
    assert_eq!((before.head, before.replaced_turns, before.form_messages), (1, 4, 2));
    assert_eq!(before.messages.last(), messages.last());
    let mut answered = messages.clone();
    answered.push(assistant("Done."));
    let links = open(&book, &answered).await.links.clone();
    let live = Live { tokens: vec![1, 2, 3].into(), end: links[5].end, closed: false };
    first.session.settle_reply(&answered, &links, vec![7, 8].into(), live);
    book.flush().await.unwrap();
    let id = first.session.id().clone();
    drop((first, book));

    let (book, recovery) = reopened(folder.path());
    assert_eq!((recovery.sessions, recovery.interrupted), (1, 0));
    answered.push(user("thanks"));
    let again = open(&book, &answered).await;
    assert_eq!(again.session.id(), &id);
    let after = again.session.history(&answered, &again.links);
    assert_eq!(after.messages[..before.messages.len()], before.messages);
    assert_eq!(after.spoken[after.messages.len() - 2].as_deref(), Some(&[7, 8][..]));
    assert_eq!(again.session.compactions(), 1);
    assert_eq!(again.session.records()[0].summary.as_deref(), Some("all is well"));
    assert!(again.session.live().is_none(), "the cache did not survive");
}

/// The store's thread ends with the last handle, a moment later.
fn reopened(folder: &Path) -> (SessionBook, plimsoll_runtime::sessions::Recovery) {
    for _ in 0..200 {
        match SessionBook::open(folder) {
            Err(StoreError::InUse { .. }) => std::thread::sleep(std::time::Duration::from_millis(10)),
            opened => return opened.unwrap(),
        }
    }
    panic!("the store was not let go of");
}

#[tokio::test]
async fn clients_that_change_what_takes_no_part_keep_their_form_and_those_that_edit_lose_it() {
    let book = SessionBook::in_memory();
    let messages = conversation();
    let first = open(&book, &messages).await;
    replace(&first, 4).await;
    let seen = async |changed: &[Message]| {
        let opened = open(&book, changed).await;
        (opened.session.id() == first.session.id(), opened.session.history(changed, &opened.links))
    };
    let mut harmless = messages.clone();
    harmless[0].content = "another head".into();
    harmless[2].tool_calls[0].id = "other".into();
    harmless[2].tool_calls[0].arguments = r#"{"b":2,"a":1}"#.into();
    harmless[4].reasoning = Some("hm".into());
    harmless[4].content = " Fixed.\n".into();
    harmless.push(assistant("Wait."));
    harmless.push(user("go on"));
    let (same, history) = seen(&harmless).await;
    assert!(same && history.form.is_some() && history.edits.is_empty());
    assert_eq!(history.messages[0].content, "another head");
    assert_eq!(history.messages.len(), 1 + 2 + 3);

    let mut pruned = messages.clone();
    pruned[3].content = "[pruned]".into();
    let (_, history) = seen(&pruned).await;
    assert_eq!(history.replaced_turns, 4);
    assert_eq!(history.edits.len(), 1);

    let mut edited = messages.clone();
    edited[1].content = "fix something else".into();
    let (same, history) = seen(&edited).await;
    assert!(!same && history.form.is_none());
    assert_eq!(history.messages, edited);
}

#[tokio::test]
async fn names_tenants_models_and_simultaneous_twins_make_sessions() {
    let book = SessionBook::in_memory();
    let messages = conversation();
    let ask = async |tenant: TenantId, model: &str, name: Option<&str>| {
        book.session(Asked { tenant, model, name, messages: &messages })
    };
    let named = ask(ME, "m", Some("work")).await.session.id().clone();
    assert_eq!(ask(ME, "m", Some("work")).await.session.id(), &named);
    assert_eq!(ask(ME, "m", Some(named.as_str())).await.session.id(), &named);
    for (tenant, model, name) in [(TenantId(2), "m", "work"), (ME, "n", "work"), (ME, "m", "play")] {
        assert_ne!(ask(tenant, model, Some(name)).await.session.id(), &named);
    }
    assert!(book.find(TenantId(2), named.as_str(), ["m"]).is_none());
    let first = ask(TenantId(3), "m", None).await;
    replace(&first, 4).await;
    let twin = ask(TenantId(3), "m", None).await;
    assert_ne!(twin.session.id(), first.session.id(), "the same request runs already");
    assert!(twin.session.history(&messages, &twin.links).form.is_some(), "it begins as the other's equal");
    let id = twin.session.id().clone();
    drop((first, twin));
    let twin = book.find(TenantId(3), id.as_str(), []).unwrap();
    book.delete(&twin).await.unwrap();
    assert!(book.find(TenantId(3), id.as_str(), []).is_none());
    assert_eq!(book.find(ME, "work", ["x", "m"]).unwrap().id(), &named);
}

#[tokio::test]
async fn what_a_process_left_open_is_closed_and_its_summary_is_evidence() {
    let folder = tempfile::tempdir().unwrap();
    let messages = conversation();
    let (book, _) = SessionBook::open(folder.path()).unwrap();
    let first = open(&book, &messages).await;
    first.session.record_started(&record(&first, 4, CompactionState::Started)).await.unwrap();
    first.session.record_summarised(&record(&first, 4, CompactionState::Summarised)).await.unwrap();
    drop((first, book));
    let (book, recovery) = reopened(folder.path());
    assert_eq!(recovery.interrupted, 2);
    let again = open(&book, &messages).await;
    for record in again.session.records() {
        let reason = FailureReason::Interrupted;
        assert!(matches!(record.state, CompactionState::Failed { reason: found, .. } if found == reason));
        assert_eq!(record.summary.as_deref(), Some("all is well"));
    }
    assert!(again.session.history(&messages, &again.links).form.is_none());
    assert_eq!(again.session.failures_in_row(), 0, "an interruption counts towards nothing");
}

#[tokio::test]
async fn three_failures_open_the_breaker_and_a_success_or_a_person_closes_it() {
    let book = SessionBook::in_memory();
    let first = open(&book, &conversation()).await;
    let failed = |reason| CompactionState::Failed { reason, message: "no".into() };
    let fail = async |reason, stop| {
        first.session.record_failed(&record(&first, 4, failed(reason)), stop).await.unwrap();
    };
    fail(FailureReason::Cancelled, true).await;
    assert_eq!((first.session.failures_in_row(), first.session.stopped()), (0, None));
    for _ in 0..3 {
        fail(FailureReason::Empty, true).await;
    }
    assert!(first.session.breaker_open());
    assert_eq!(first.session.stopped().as_deref(), Some("no"));
    first.session.resume().await.unwrap();
    assert!(!first.session.breaker_open() && first.session.stopped().is_none());
    fail(FailureReason::Empty, false).await;
    replace(&first, 4).await;
    assert_eq!(first.session.failures_in_row(), 0);
    assert!(first.session.try_compaction_lock().is_some());
    let held = first.session.compaction_lock().await;
    assert!(first.session.try_compaction_lock().is_none());
    drop(held);
}

#[test]
fn a_second_process_and_a_broken_file_are_refused_with_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let (book, _) = SessionBook::open(folder.path()).unwrap();
    let error = SessionBook::open(folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    drop(book);
    drop(reopened(folder.path()));

    let broken = tempfile::tempdir().unwrap();
    let file = broken.path().join("sessions.sqlite");
    fs::write(&file, b"this is no database, but it is long enough to look at").unwrap();
    let error = SessionBook::open(broken.path()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }) && error.to_string().contains("sessions.sqlite"), "{error}");

    let not_a_folder = file.join("below");
    assert!(matches!(SessionBook::open(&not_a_folder).unwrap_err(), StoreError::Folder { .. }));
}
