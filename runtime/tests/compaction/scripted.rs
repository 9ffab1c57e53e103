//! Every outcome of a compaction, with the simulated engine's scripted summaries.

use std::time::Duration;

use plimsoll_kernels::PAGE_TOKENS;
use plimsoll_models::chat::{Message, Role};
use plimsoll_models::preset::Fallback;
use plimsoll_runtime::compaction::instruction::SECTIONS;
use plimsoll_runtime::compaction::{Canceller, CompactionError, Step};
use plimsoll_runtime::engine::{CachePolicy, FinishReason};
use plimsoll_runtime::model_text::Ending;
use plimsoll_runtime::sessions::{CompactionRecord, CompactionState, FailureReason, History, SessionBook, Trigger};

use super::desk::{Desk, ME, call, opened, result, user};

/// A summary as the instruction asks for it.
fn summary() -> String {
    SECTIONS.iter().map(|name| format!("## {name}\n- about {name}\n\n")).collect()
}

/// The summary with the lines of one section replaced.
fn summary_with(section: &str, lines: &str) -> String {
    let of = |name: &&str| format!("## {name}\n{}\n", if *name == section { lines } else { "- (as it is)\n" });
    SECTIONS.iter().enumerate().map(|(at, name)| of(name).replace("as it is", &format!("line {at}"))).collect()
}

/// A conversation of some thousand tokens with calls and results, whose last turn is a user's.
fn conversation() -> Vec<Message> {
    let mut messages = vec![Message::text(Role::System, "You are a careful engineer. ".repeat(20))];
    messages.push(user("Mend the parser in src/parser.rs and keep the public API."));
    for step in 0..8 {
        messages.push(call("read", &format!(r#"{{"path": "src/part_{step}.rs"}}"#)));
        messages.push(result(format!("line of part {step}\n").repeat(80)));
    }
    messages.push(Message::text(Role::Assistant, "I have read all parts."));
    messages.push(user("Go on."));
    messages
}

fn failure(error: CompactionError) -> (FailureReason, CompactionRecord) {
    match error {
        CompactionError::Failed(record) => match &record.state {
            CompactionState::Failed { reason, .. } => (*reason, *record),
            other => panic!("{other:?}"),
        },
        other => panic!("{other}"),
    }
}

fn same(one: &History, other: &History) -> bool {
    one.messages == other.messages && one.form == other.form
}

#[tokio::test]
async fn an_accepted_summary_replaces_the_history_and_the_head_stays_cached() {
    let desk = Desk::scripted(&["Working on it.", &summary(), "Next."]);
    let mut messages = conversation();
    desk.ask(&mut messages).await;
    messages.push(user("And now?"));
    let record = desk.compact(&messages).await.unwrap();
    assert_eq!(record.state, CompactionState::Replaced);
    assert!(record.live, "{record:?}");
    assert_eq!(record.attempts, 1);
    assert!(record.fallback_sections.is_empty());
    let history = desk.history(&messages);
    assert!(history.form.is_some());
    let text = &history.messages[1].content;
    for section in SECTIONS {
        assert!(text.contains(&format!("## {section}\n- about {section}\n")), "{text}");
    }
    assert!(text.contains("Mend the parser") && text.contains("src/part_7.rs"), "{text}");
    assert_eq!(history.messages.last().unwrap().content, "And now?");
    let tail = &history.messages[2..history.messages.len() - 1];
    assert_eq!(tail[0].role, Role::Assistant);
    assert!(tail.iter().any(|message| !message.tool_calls.is_empty()), "a call and its result stay");
    // The new form lies in the cache already.
    let next = desk.ask(&mut messages).await;
    assert_eq!(next.text, "Next.");
    assert_eq!(record.tokens_after.unwrap().0 as usize, next.prompt.len());
    let behind_the_form = desk.render(&desk.history(&messages), Ending::History).len();
    assert!(next.usage.prefilled < 60, "{:?} of {behind_the_form}", next.usage);
    let status = desk.engine().status();
    assert_eq!(status.running, 0);
}

#[tokio::test]
async fn t1_a_defective_summary_changes_nothing_is_generated_once_and_is_recorded() {
    let repeating = summary_with(SECTIONS[0], &"- the same\n".repeat(3)).replace("line 1", "the same");
    let all_the_same: String = SECTIONS.iter().map(|name| format!("## {name}\n- the same\n- the same\n")).collect();
    let cases = [
        ("", FailureReason::Empty),
        (&all_the_same, FailureReason::Repetition),
        (&summary_with(SECTIONS[4], ""), FailureReason::MissingSection),
        (&summary_with(SECTIONS[2], "<tool_call>\n{\"name\": \"read\"}</tool_call>\n"), FailureReason::ToolCall),
    ];
    assert!(repeating.contains("the same"));
    for (text, expected) in cases {
        let desk = Desk::scripted(&["Working on it.", text, "Next."]);
        let mut messages = conversation();
        desk.ask(&mut messages).await;
        messages.push(user("And now?"));
        let before = desk.history(&messages);
        let (reason, record) = failure(desk.compact(&messages).await.unwrap_err());
        assert_eq!(reason, expected, "{record:?}");
        assert_eq!(record.attempts, 1);
        assert!(same(&before, &desk.history(&messages)));
        let session = desk.open(&messages).session.clone();
        assert_eq!(session.records().len(), 1);
        assert_eq!((session.compactions(), session.failures_in_row()), (0, 1));
        assert_eq!(desk.ask(&mut messages).await.text, "Next.", "one reply of the script was the summary");
    }
}

#[tokio::test]
async fn t1_a_truncated_summary_changes_nothing() {
    let endless: String = (0..2000).map(|line| format!("- line {line} of many\n")).collect();
    let desk = Desk::scripted(&["Working on it.", &endless]);
    let mut messages = conversation();
    desk.ask(&mut messages).await;
    let before = desk.history(&messages);
    let mut task = desk.task(&messages, Trigger::Request);
    task.instructions = Some("Say all that was said.".into());
    let lock = task.session.try_compaction_lock().unwrap();
    let (_canceller, cancel) = Canceller::new();
    let (reason, record) = failure(desk.compactor.compact(&lock, task, cancel).await.unwrap_err());
    assert_eq!((reason, record.attempts), (FailureReason::Truncated, 1));
    assert_eq!(record.summary_tokens, record.cap);
    assert!(same(&before, &desk.history(&messages)));
}

#[tokio::test]
async fn t1_a_store_that_cannot_write_changes_nothing() {
    for step in [Step::Priced, Step::Accepted, Step::Persisted, Step::Rechecked] {
        let desk = Desk::scripted(&["Working on it.", &summary(), "Next."]).failing(step);
        let mut messages = conversation();
        desk.ask(&mut messages).await;
        let before = desk.history(&messages);
        let (reason, record) = failure(desk.compact(&messages).await.unwrap_err());
        assert_eq!(reason, FailureReason::Store);
        assert_eq!(record.summary.is_some(), step >= Step::Summarised, "a summary is evidence");
        assert!(same(&before, &desk.history(&messages)));
    }
}

#[tokio::test]
async fn t1_one_that_is_too_large_gets_one_second_attempt() {
    // The limit is head + 0.40 of the way to the threshold; only what is kept word for word can break it.
    let long = "a requirement of the first request; ".repeat(600);
    let desk = Desk::scripted(&["Working on it.", &summary(), &summary(), "Next."]);
    let mut messages = vec![user(long)];
    messages.push(Message::text(Role::Assistant, "Understood."));
    messages.push(user("Go on."));
    desk.ask(&mut messages).await;
    let before = desk.history(&messages);
    let (reason, record) = failure(desk.compact(&messages).await.unwrap_err());
    assert_eq!((reason, record.attempts), (FailureReason::TooLarge, 2));
    assert!(same(&before, &desk.history(&messages)));
    messages.push(user("More."));
    assert_eq!(desk.ask(&mut messages).await.text, "Next.");
}

#[tokio::test]
async fn a_long_result_of_the_last_call_is_shortened_in_the_second_attempt() {
    let desk = Desk::scripted(&["Read it.", &summary()]);
    let mut messages = conversation();
    messages.truncate(2);
    for (step, lines) in [600, 600, 1300].into_iter().enumerate() {
        messages.push(call("read", &format!(r#"{{"path": "src/part_{step}.rs"}}"#)));
        messages.push(result(format!("a line of part {step}\n").repeat(lines)));
    }
    desk.ask(&mut messages).await;
    let record = desk.compact(&messages).await.unwrap();
    assert_eq!(record.attempts, 1, "clearing was enough");
    assert!(record.edits.iter().any(|edit| edit.contains("left out")), "{:?}", record.edits);
    let history = desk.history(&messages);
    let results: Vec<&Message> = history.messages.iter().filter(|message| message.role == Role::Tool).collect();
    assert_eq!(results.len(), 1);
    assert!(results[0].content.contains("tokens left out]"));
}

#[tokio::test]
async fn t2_a_cancel_after_the_summary_was_saved_leaves_the_history_and_keeps_the_record() {
    let desk = Desk::scripted(&["Working on it.", &summary()]).pausing(Step::Persisted, Duration::from_secs(60));
    let mut messages = conversation();
    desk.ask(&mut messages).await;
    let before = desk.history(&messages);
    let (canceller, cancel) = Canceller::new();
    let session = desk.open(&messages).session.clone();
    let (outcome, ()) = tokio::join!(desk.compact_until(&messages, cancel), async {
        while session.records().first().is_none_or(|record| record.state != CompactionState::Summarised) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        canceller.cancel();
    });
    let (reason, record) = failure(outcome.unwrap_err());
    assert_eq!(reason, FailureReason::Cancelled);
    assert!(record.summary.unwrap().contains("about Next Step"));
    assert!(same(&before, &desk.history(&messages)));
    assert_eq!(session.failures_in_row(), 0, "a cancellation does not count");
    assert!(session.try_compaction_lock().is_some());
}

#[tokio::test]
async fn t3_the_summary_is_flushed_before_the_replacement() {
    let folder = tempfile::tempdir().unwrap();
    let desk = Desk::with_book(&["Working on it.", &summary()], opened(folder.path()))
        .pausing(Step::Rechecked, Duration::from_millis(300));
    let mut messages = conversation();
    desk.ask(&mut messages).await;
    let file = folder.path().join("sessions.sqlite");
    let copy = tempfile::tempdir().unwrap();
    let session = desk.open(&messages).session.clone();
    let (outcome, ()) = tokio::join!(desk.compact(&messages), async {
        while session.records().first().is_none_or(|record| record.state != CompactionState::Summarised) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // What a crash at this moment would leave.
        for suffix in ["", "-wal"] {
            let name = format!("sessions.sqlite{suffix}");
            std::fs::copy(file.with_file_name(&name), copy.path().join(&name)).unwrap();
        }
    });
    outcome.unwrap();
    let crashed = Desk::with_book(&[], opened(copy.path()));
    let record = crashed.open(&messages).session.records().remove(0);
    assert!(record.summary.unwrap().contains("about Next Step"), "saved");
    assert!(matches!(record.state, CompactionState::Failed { reason: FailureReason::Interrupted, .. }));
    assert!(crashed.history(&messages).form.is_none(), "and not yet in the place of the history");
}

#[tokio::test]
async fn t4_a_summary_that_is_not_smaller_than_its_span_is_a_failure() {
    let desk = Desk::scripted(&["Hello.", &summary_with(SECTIONS[0], "- a line as long as all that was said\n")]);
    let mut messages = vec![user("Hi.")];
    desk.ask(&mut messages).await;
    let before = desk.history(&messages);
    let (reason, _) = failure(desk.compact(&messages).await.unwrap_err());
    assert_eq!(reason, FailureReason::NotSmaller);
    assert!(same(&before, &desk.history(&messages)));
}

#[tokio::test]
async fn t5_an_earlier_checkpoint_is_merged_so_that_there_is_one() {
    let second = summary().replace("- about", "- merged, about");
    let desk = Desk::scripted(&["Working on it.", &summary(), "Next.", &second, "Last."]);
    let mut messages = conversation();
    desk.ask(&mut messages).await;
    desk.compact(&messages).await.unwrap();
    messages.push(user("And now?"));
    desk.ask(&mut messages).await;
    for step in 0..4 {
        messages.push(call("write", &format!(r#"{{"path": "src/new_{step}.rs"}}"#)));
        messages.push(result("written\n".repeat(60)));
    }
    messages.push(Message::text(Role::Assistant, "Written."));
    messages.push(user("Now test it."));
    let record = desk.compact(&messages).await.unwrap();
    let history = desk.history(&messages);
    let text = &history.messages[1].content;
    assert_eq!(text.matches("<record:checkpoint").count(), 1);
    assert!(text.contains(record.id.as_str()) && text.contains("- merged, about"), "{text}");
    assert!(!text.contains("\n- about"), "the earlier one is gone");
    assert_eq!(text.matches("<record:first-request>").count(), 1);
    let later = |message: &&Message| message.content.contains("And now?");
    assert_eq!(history.messages.iter().filter(later).count(), 1, "a later message of the user is kept, once");
    assert_eq!(desk.open(&messages).session.compactions(), 2);
    assert_eq!(history.messages.last().unwrap().content, "Now test it.");
}

#[tokio::test]
async fn t6_a_crash_between_any_two_steps_leaves_the_old_history_or_the_new_one() {
    for step in Step::ALL {
        let folder = tempfile::tempdir().unwrap();
        let mut messages = conversation();
        let old = {
            let desk = Desk::with_book(&["Working on it.", &summary()], opened(folder.path()))
                .pausing(step, Duration::from_secs(60));
            desk.ask(&mut messages).await;
            let old = desk.history(&messages);
            // The process is gone when the future is: nothing of it runs on.
            let outcome = tokio::time::timeout(Duration::from_millis(400), desk.compact(&messages)).await;
            assert!(outcome.is_err(), "it waits behind the step {step}");
            desk.book.flush().await.unwrap();
            desk.engine().shutdown().await;
            old
        };
        let desk = Desk::with_book(&["Next."], opened(folder.path()));
        let session = desk.open(&messages).session.clone();
        let records = session.records();
        let history = desk.history(&messages);
        if step >= Step::Replaced {
            assert_eq!(records[0].state, CompactionState::Replaced, "{step}");
            let form = history.form.clone().unwrap();
            assert_eq!(form.checkpoint.id, records[0].id);
            assert_eq!(history.messages[1..1 + history.form_messages], form.messages());
        } else {
            assert!(same(&old, &history), "{step}");
            let interrupted = |record: &CompactionRecord| {
                matches!(record.state, CompactionState::Failed { reason: FailureReason::Interrupted, .. })
            };
            assert_eq!(records.len(), usize::from(step >= Step::Started), "{step}");
            assert!(records.iter().all(interrupted), "{step}: {records:?}");
        }
        messages.push(user("And now?"));
        assert_eq!(desk.ask(&mut messages).await.text, "Next.", "{step}");
    }
}

#[tokio::test]
async fn t7_the_rows_fed_for_the_summary_are_those_of_its_instruction() {
    let desk = Desk::scripted(&["Working on it.", &summary()]);
    let mut messages = conversation();
    let answer = desk.ask(&mut messages).await;
    let base = answer.prompt.len() + answer.tokens.len();
    let rows = desk.engine().status().totals.rows_fed;
    let record = desk.compact(&messages).await.unwrap();
    let fed = desk.engine().status().totals.rows_fed - rows;
    assert!(record.live);
    assert_eq!(record.prefilled_tokens, record.instruction_tokens);
    assert_eq!(record.instruction_tokens.0, desk.compactor.instruction_tokens());
    assert!(base > 10 * record.instruction_tokens.0 as usize / 10, "{base}");
    // What was fed besides: the summary's own tokens but for the last, and the new form behind the head.
    let form = desk
        .render(&History { messages: desk.history(&messages).messages, ..desk.history(&messages) }, Ending::History);
    let fed_for_summary = u64::from(record.prefilled_tokens.0 + record.summary_tokens.0);
    assert!(fed <= fed_for_summary + form.len() as u64, "{fed} > {fed_for_summary} + {}", form.len());

    // The control: with nothing in the cache the whole conversation is prefilled.
    let control = Desk::scripted(&["Working on it.", &summary()]);
    let mut messages = conversation();
    control.ask(&mut messages).await;
    control.engine().clear_cache().await;
    let record = control.compact(&messages).await.unwrap();
    assert!(!record.live);
    assert_eq!(record.prefilled_tokens.0 as usize, base + record.instruction_tokens.0 as usize);
}

#[tokio::test]
async fn results_that_have_just_arrived_are_read_first_and_the_summary_is_still_live() {
    let desk = Desk::scripted(&["<tool_call>\n{\"name\": \"read\", \"arguments\": {}}\n</tool_call>", &summary()]);
    let mut messages = conversation();
    desk.ask(&mut messages).await;
    let said = messages.last_mut().unwrap();
    said.content.clear();
    *said = Message { tool_calls: call("read", "{}").tool_calls, ..said.clone() };
    // The client sends the call back in its own words; the engine knows it as it was generated.
    let open = desk.open(&messages);
    let spoken = "<tool_call>\n{\"name\": \"read\", \"arguments\": {}}\n</tool_call>";
    let ids: Vec<u32> = desk.compactor.text.encode_part(spoken);
    let prompt = {
        let before = &messages[..messages.len() - 1];
        desk.render(&desk.history(before), Ending::Reply)
    };
    let live = plimsoll_runtime::sessions::LiveTokens {
        tokens: std::sync::Arc::new([&prompt[..], &ids].concat()),
        closed: false,
    };
    desk.book.settle_reply(&open, &messages, Some((ids.into(), live)));
    drop(open);
    messages.push(result("fn main() {}\n".repeat(40)));
    let record = desk.compact(&messages).await.unwrap();
    assert!(record.live, "{record:?}");
    assert_eq!(record.prefilled_tokens, record.instruction_tokens);
    assert_eq!(record.span.turns as usize, messages.len() - 1, "the results are inside the span");
}

#[tokio::test]
async fn t8_of_two_at_once_the_second_is_busy() {
    let desk = Desk::scripted(&["Working on it.", &summary()]).pausing(Step::Started, Duration::from_millis(200));
    let mut messages = conversation();
    desk.ask(&mut messages).await;
    let (first, second) = tokio::join!(desk.compact(&messages), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        desk.compact(&messages).await
    });
    first.unwrap();
    assert!(matches!(second, Err(CompactionError::Busy)));
    assert_eq!(desk.open(&messages).session.records().len(), 1);
}

#[tokio::test]
async fn t9_a_guarded_session_stops_with_a_failure_and_goes_on_when_a_person_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut messages = conversation();
    {
        let mut desk = Desk::with_book(&["Working on it.", ""], opened(folder.path()));
        desk.compactor.guarded = true;
        desk.ask(&mut messages).await;
        failure(desk.compact(&messages).await.unwrap_err());
        let session = desk.open(&messages).session.clone();
        assert!(session.stopped().unwrap().contains("no complete line"));
        desk.engine().shutdown().await;
    }
    let desk = Desk::with_book(&[&summary()], opened(folder.path()));
    let session = desk.open(&messages).session.clone();
    assert!(session.stopped().is_some(), "a restart does not resume it");
    assert_eq!(session.records().len(), 1);
    desk.compact(&messages).await.unwrap();
    assert!(session.stopped().is_none(), "a success by hand does");
}

#[tokio::test]
async fn t10_sixty_compactions_in_a_row_leave_nothing_behind() {
    let mut replies = Vec::new();
    for round in 0..60 {
        replies.push(format!("Round {round}."));
        replies.push(summary().replace("about", &format!("round {round} about")));
    }
    let replies: Vec<&str> = replies.iter().map(String::as_str).collect();
    let desk = Desk::scripted(&replies);
    let mut messages = conversation();
    let mut pages = Vec::new();
    for round in 0..60 {
        desk.ask(&mut messages).await;
        let record = desk.compact(&messages).await.unwrap();
        assert!(record.live, "round {round}: {record:?}");
        assert_eq!(record.prefilled_tokens, record.instruction_tokens, "round {round}");
        messages.push(user(format!("Request number {round}: go on with the next part.")));
        for part in 0..4 {
            messages.push(call("read", &format!(r#"{{"path": "src/round_{round}_{part}.rs"}}"#)));
            messages.push(result(format!("line of round {round} part {part}\n").repeat(80)));
        }
        let status = desk.engine().status();
        // What is kept word for word grows; nothing beside the new form may lie in the cache.
        pages.push((status.pages.evictable, record.tokens_after.unwrap().0 as usize / PAGE_TOKENS));
        assert_eq!(status.pages.promised, 0);
    }
    assert!(pages.iter().all(|(cached, form)| cached <= &(form + 8)), "cached pages and those of the form: {pages:?}");
}

#[tokio::test]
async fn t11_four_streams_that_hold_the_whole_pool_go_on_while_one_session_compacts() {
    const CAP: usize = 3000;
    let stream = "0123456789".repeat(CAP / 10);
    let (written, said) = (summary(), "Working on it.");
    let desk = Desk::with_pages(&[said, &stream, &stream, &stream, &stream, &written, "Next."], 1000);
    let mut messages = conversation();
    desk.ask(&mut messages).await;
    messages.push(user("And now?"));
    let pages = desk.engine().status().pages;
    // Four streams take what is free and what could be evicted: nothing is left for a fifth reply of that size.
    let prompt = |seed: u32| vec![65 + seed; pages.total * PAGE_TOKENS / 4 - CAP - PAGE_TOKENS];
    let stream = |seed| desk.run_capped(prompt(seed), CAP as u32);
    let streams = async { <[_; 4]>::from(tokio::join!(stream(0), stream(1), stream(2), stream(3))) };
    let (streams, record) = tokio::join!(streams, async {
        while desk.engine().status().running < 4 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let full = desk.engine().status().pages;
        assert!(full.free + full.evictable < 8 * full.total / 100 + full.promised, "the pool is taken: {full:?}");
        desk.compact(&messages).await
    });
    for (tokens, _, finish) in streams {
        assert_eq!((tokens.len(), finish), (CAP, Some(FinishReason::Length)), "a stream is said to its end");
    }
    let record = record.unwrap();
    assert_eq!(record.state, CompactionState::Replaced, "{record:?}");
    assert_eq!(desk.ask(&mut messages).await.text, "Next.");
    let status = desk.engine().status();
    assert_eq!((status.running, status.waiting, status.pages.promised), (0, 0, 0));
}

#[tokio::test]
async fn t13_after_a_restart_the_old_history_gives_the_same_prompt_and_no_second_summary() {
    let folder = tempfile::tempdir().unwrap();
    let mut messages = conversation();
    let before = {
        let desk = Desk::with_book(&["Working on it.", &summary()], opened(folder.path()));
        desk.ask(&mut messages).await;
        desk.compact(&messages).await.unwrap();
        messages.push(user("And now?"));
        let before = desk.render(&desk.history(&messages), Ending::Reply);
        desk.book.flush().await.unwrap();
        desk.engine().shutdown().await;
        before
    };
    let desk = Desk::with_book(&["Next."], opened(folder.path()));
    let answer = desk.ask(&mut messages).await;
    assert_eq!(answer.prompt, before);
    assert_eq!(answer.text, "Next.", "no reply of the script went into a summary");
    assert_eq!(answer.session.compactions(), 1);
}

#[tokio::test]
async fn t14_facts_that_were_planted_outside_head_and_tail_stand_in_the_summary() {
    let planted = "- step 2 of 3 of the migration; test it_reads_empty_input fails; next: cargo test -p parser";
    let desk = Desk::scripted(&["Working on it.", &summary_with("Current Work", &format!("{planted}\n"))]);
    let mut messages = conversation();
    messages[3].content.push_str("FAILED it_reads_empty_input at src/deep/edge.rs:88\nerror: expected 3, found 4\n");
    desk.ask(&mut messages).await;
    let record = desk.compact(&messages).await.unwrap();
    let text = record.summary.unwrap();
    for fact in [planted, "src/deep/edge.rs", "error: expected 3, found 4"] {
        assert!(text.contains(fact), "{fact} in {text}");
    }
}

#[tokio::test]
async fn t15_a_message_that_arrives_while_persisting_is_in_the_tail() {
    let desk =
        Desk::scripted(&["Working on it.", &summary(), "Next."]).pausing(Step::Persisted, Duration::from_millis(200));
    let mut messages = conversation();
    desk.ask(&mut messages).await;
    let mut later = messages.clone();
    later.push(user("Wait, one more thing."));
    let (outcome, ()) = tokio::join!(desk.compact(&messages), async {
        tokio::time::sleep(Duration::from_millis(80)).await;
        let open = desk.open(&later);
        assert!(open.session.history(&later, &open.links).form.is_none(), "not replaced yet");
    });
    outcome.unwrap();
    let history = desk.history(&later);
    assert!(history.form.is_some());
    assert_eq!(history.messages.last().unwrap().content, "Wait, one more thing.");
    assert_eq!(desk.ask(&mut later).await.text, "Next.");
}

#[tokio::test]
async fn a_model_that_is_too_small_falls_back_to_facts_and_the_record_names_the_sections() {
    let mut desk = Desk::scripted(&["Working on it.", &summary_with("Files and Code", "")]);
    desk.compactor.fallback = Fallback::Facts;
    let mut messages = conversation();
    desk.ask(&mut messages).await;
    let record = desk.compact(&messages).await.unwrap();
    assert_eq!(record.fallback_sections, ["Files and Code"]);
    assert!(record.summary.unwrap().contains("## Files and Code\n- src/part_0.rs\n"));
}

#[tokio::test]
async fn a_history_beyond_the_window_is_folded_part_by_part() {
    let summaries: Vec<String> =
        (0..4).map(|round| summary().replace("about", &format!("fold {round} about"))).collect();
    let replies: Vec<&str> = summaries.iter().map(String::as_str).chain(["At last."]).collect();
    let desk = Desk::scripted(&replies);
    let mut messages = vec![user("Port the whole tree.")];
    for step in 0..28 {
        messages.push(call("read", &format!(r#"{{"path": "src/{step}.rs"}}"#)));
        messages.push(result(format!("content of part {step}\n").repeat(250)));
    }
    messages.push(Message::text(Role::Assistant, "All read."));
    messages.push(user("Go on."));
    assert!(desk.render(&desk.history(&messages), Ending::Reply).len() > 2 * super::desk::WINDOW);
    let mut folds = 0;
    while desk.render(&desk.history(&messages), Ending::Reply).len() >= desk.compactor.budget.compaction.0 as usize {
        let record = desk.compact(&messages).await.unwrap();
        assert_eq!(record.live, folds > 0, "only the form of an earlier fold lies in the cache: {record:?}");
        assert_eq!(record.cap, desk.compactor.budget.summary, "a part is as long as a whole summary of it allows");
        folds += 1;
        assert!(folds <= 4, "it gets shorter every time");
    }
    assert!((2..=4).contains(&folds), "{folds}");
    let records = desk.open(&messages).session.records();
    assert_eq!(records[0].trigger, Trigger::Fold);
    assert!(records.windows(2).all(|pair| pair[0].span.turns < pair[1].span.turns));
    let history = desk.history(&messages);
    assert_eq!(history.messages[0].content.matches("<record:checkpoint").count(), 1);
    assert_eq!(history.messages.last().unwrap().content, "Go on.");
}

#[tokio::test]
async fn nothing_to_replace_is_said_and_leaves_no_record() {
    let desk = Desk::scripted(&[]);
    let messages = vec![user("Hi."), call("read", "{}")];
    assert!(matches!(desk.compact(&messages).await, Err(CompactionError::NothingToReplace)));
    assert!(desk.open(&messages).session.records().is_empty());
    assert_eq!(desk.engine().status().totals.rows_fed, 0);
}

#[tokio::test]
async fn a_bypassed_cache_feeds_the_whole_prompt() {
    let desk = Desk::scripted(&["One.", "Two."]);
    let mut messages = conversation();
    let answer = desk.ask(&mut messages).await;
    let (_, usage, _) = desk.run(answer.prompt.clone(), CachePolicy::Bypass).await;
    assert_eq!((usage.cached, usage.prefilled as usize), (0, answer.prompt.len()));
    assert_eq!(ME.0, 7);
    let _ = SessionBook::in_memory();
}
