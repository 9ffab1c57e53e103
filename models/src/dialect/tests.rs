//! Replies are split the same however they are cut, drift is recovered or stays content, and nothing is lost.

use proptest::prelude::*;
use serde_json::json;

use super::hermes::{Body, BodyEnd, CLOSE, OPEN};
use super::splitter::{END_THINK, Fence, THINK};
use super::*;
use crate::chat::{Role, ToolCall};
use crate::template::{CHATML, TemplateOptions};
use crate::tokenizer::SpecialTokens;

const HERMES: Dialect = Dialect::new(DialectName::Hermes, ReasoningStyle::None);
const THINKING: Dialect = Dialect::new(DialectName::Hermes, ReasoningStyle::ThinkTags);

fn content(text: &str) -> OutputPart {
    OutputPart::Content(text.to_owned())
}

fn reasoning(text: &str) -> OutputPart {
    OutputPart::Reasoning(text.to_owned())
}

fn call(name: &str, arguments: &str) -> OutputPart {
    OutputPart::ToolCall { name: name.to_owned(), arguments: arguments.to_owned() }
}

/// Neighbouring texts of one kind put together, as a client sees them.
fn joined(parts: Vec<OutputPart>) -> Vec<OutputPart> {
    let mut whole: Vec<OutputPart> = Vec::new();
    for part in parts {
        match (whole.last_mut(), part) {
            (Some(OutputPart::Content(before)), OutputPart::Content(text))
            | (Some(OutputPart::Reasoning(before)), OutputPart::Reasoning(text)) => before.push_str(&text),
            (_, part) => whole.push(part),
        }
    }
    whole
}

/// What comes out if the reply arrives in these pieces.
fn split<'a>(mut splitter: OutputSplitter, pieces: impl IntoIterator<Item = &'a str>) -> Vec<OutputPart> {
    let mut parts: Vec<OutputPart> = pieces.into_iter().flat_map(|piece| splitter.feed(piece)).collect();
    parts.extend(splitter.finish());
    assert!(splitter.finish().is_empty(), "nothing comes after the end");
    joined(parts)
}

/// The naive twin: the rules of [`OutputSplitter`] on a whole reply, with nothing held back.
fn naive(text: &str, style: ReasoningStyle, opened: bool, tools: ToolsOffered) -> Vec<OutputPart> {
    let mut parts = Vec::new();
    let (mut inside, mut beginning, mut after_tag) = (opened, !opened, opened);
    let mut fence = Fence::default();
    let mut rest = text;
    loop {
        if after_tag {
            rest = rest.trim_start();
        }
        if rest.is_empty() {
            return joined(parts);
        }
        let mut tags = Vec::new();
        if style == ReasoningStyle::ThinkTags && inside {
            tags.push(END_THINK);
        }
        if style == ReasoningStyle::ThinkTags && beginning {
            tags.push(THINK);
        }
        if tools == ToolsOffered::Yes {
            tags.push(OPEN);
        }
        let found = tags.iter().filter_map(|tag| Some((rest.find(tag)?, *tag))).min();
        let (at, tag) = found.unwrap_or((rest.len(), ""));
        let spoken = rest[..at].trim_end();
        let end_of_tag = at + tag.len();
        let mut fenced = fence;
        fenced.feed(&rest[..at]);
        let calls = (tag == OPEN && !fenced.is_open()).then(|| naive_call(&rest[end_of_tag..])).flatten();
        let is_thought = tag == END_THINK || (tag == THINK && spoken.is_empty());
        let kept = if calls.is_some() || is_thought { spoken } else { &rest[..end_of_tag] };
        if !kept.is_empty() {
            parts.push(if inside { reasoning(kept) } else { content(kept) });
            (beginning, after_tag) = (false, false);
            fence.feed(kept);
        }
        rest = &rest[end_of_tag..];
        if let Some((calls, length)) = calls {
            parts.extend(calls);
            rest = &rest[length..];
        } else if !is_thought {
            continue;
        }
        (inside, beginning, after_tag, fence) = (tag == THINK, false, true, Fence::default());
    }
}

/// The calls after an opening tag and how many bytes they take.
fn naive_call(body: &str) -> Option<(Vec<OutputPart>, usize)> {
    if !hermes::may_become_calls(body) {
        return None;
    }
    let ends = body.match_indices(CLOSE).map(|(at, _)| (at, at + CLOSE.len(), BodyEnd::ClosingTag));
    let opens = body.match_indices(OPEN).map(|(at, _)| (at, at, BodyEnd::Other));
    let mut ends: Vec<_> = ends.chain(opens).collect();
    ends.sort_by_key(|(at, ..)| *at);
    for (at, length, end) in ends {
        match hermes::read_body(&body[..at], end) {
            Body::Calls(calls) => return Some((parts(calls), length)),
            Body::NoCall => return None,
            Body::EndsInString => {}
        }
    }
    let partial = (0..CLOSE.len()).rev().find(|length| body.ends_with(&CLOSE[..*length]))?;
    [body.len(), body.len() - partial].into_iter().find_map(|end| {
        match hermes::read_body(&body[..end], BodyEnd::Other) {
            Body::Calls(calls) => Some((parts(calls), body.len())),
            _ => None,
        }
    })
}

fn parts(calls: Vec<hermes::Call>) -> Vec<OutputPart> {
    calls.into_iter().map(|found| call(&found.name, &found.arguments)).collect()
}

/// Checks a reply in one piece, byte by byte, and cut in two at every position.
fn check(dialect: Dialect, prompt: &str, reply: &str, expected: &[OutputPart]) {
    let new = || dialect.splitter(prompt, ToolsOffered::Yes);
    assert_eq!(split(new(), [reply]), expected, "{reply:?}");
    let characters: Vec<&str> = reply.split_inclusive(|_| true).collect();
    assert_eq!(split(new(), characters), expected, "{reply:?} character by character");
    for (at, _) in reply.char_indices() {
        let (first, second) = reply.split_at(at);
        assert_eq!(split(new(), [first, second]), expected, "{first:?} | {second:?}");
    }
}

const PARIS: &str = r#"{"city": "Paris"}"#;

#[test]
fn right_calls_are_read_and_the_space_around_them_is_theirs() {
    let one = r#"<tool_call>
{"name": "weather", "arguments": {"city": "Paris"}}
</tool_call>"#;
    check(HERMES, "", one, &[call("weather", PARIS)]);
    check(HERMES, "", &format!("Let me look.\n\n{one}\n"), &[content("Let me look."), call("weather", PARIS)]);
    check(HERMES, "", &format!("{one}\n{one}"), &[call("weather", PARIS), call("weather", PARIS)]);
    check(HERMES, "", &format!("{one}\nDone. "), &[call("weather", PARIS), content("Done. ")]);
    check(HERMES, "", "no call at all \n", &[content("no call at all \n")]);
    check(HERMES, "", " \n", &[content(" \n")]);
    check(HERMES, "", "", &[]);
}

#[test]
fn drifted_calls_are_recovered_where_they_can_mean_one_thing_only() {
    let name = "weather";
    let table: &[(&str, &str)] = &[
        (r#"<tool_call>{"name":"weather","arguments":{"city": "Paris"}}</tool_call>"#, PARIS),
        (r#"<tool_call>  {"name": "weather", "arguments": {"city": "Paris"}}"#, PARIS),
        (r#"<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_c"#, PARIS),
        (r#"<tool_call>{"name": "weather", "parameters": {"city": "Paris"}}</tool_call>"#, PARIS),
        (r#"<tool_call>{"arguments": {"city": "Paris"}, "name": "weather"}</tool_call>"#, PARIS),
        (r#"<tool_call>{"name": "weather", "arguments": "{\"city\": \"Paris\"}"}</tool_call>"#, PARIS),
        (
            r#"<tool_call>{"function": {"name": "weather", "arguments": {"city":"Paris"}}}</tool_call>"#,
            r#"{"city":"Paris"}"#,
        ),
        (
            r#"<tool_call>{"type": "function", "function": {"name": "weather", "arguments": {"city":"Paris"}}}</tool_call>"#,
            r#"{"city":"Paris"}"#,
        ),
        (r#"<tool_call>{"function": "weather", "arguments": {"city": "Paris"}}</tool_call>"#, PARIS),
        (r#"<tool_call>{'name': 'weather', 'arguments': {'city': 'Paris'}}</tool_call>"#, r#"{"city":"Paris"}"#),
        (r#"<tool_call>{"name": "weather", "arguments": {"city": "Paris",},}</tool_call>"#, r#"{"city":"Paris"}"#),
        (
            r#"<tool_call>{"name": "weather", "arguments": {"ok": True, "x": None}}</tool_call>"#,
            r#"{"ok":true,"x":null}"#,
        ),
        (r#"<tool_call>{"name": "weather", "arguments": {"city": "Paris"}</tool_call>"#, PARIS),
        (r#"<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}}</tool_call>"#, PARIS),
        (r#"<tool_call>{"name": "weather"}</tool_call>"#, "{}"),
        (r#"<tool_call>{"name": "weather", "arguments": null}</tool_call>"#, "{}"),
        (r#"<tool_call>{"name": "weather", "arguments": ""}</tool_call>"#, "{}"),
        (r#"<tool_call>[{"name": "weather", "arguments": {"city":"Paris"}}]</tool_call>"#, r#"{"city":"Paris"}"#),
        (
            "<tool_call>\n```json\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n```\n</tool_call>",
            PARIS,
        ),
        ("<tool_call>```\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}```</tool_call>", PARIS),
        ("<tool_call>{\"name\": \"weather\", \"arguments\": {\"code\": \"a\nb\"}}</tool_call>", r#"{"code":"a\nb"}"#),
        (r#"<tool_call>{"name": "weather", "arguments": {"path": "C:\dir"}}</tool_call>"#, r#"{"path":"C:\\dir"}"#),
        (r#"<tool_call>{"name": " weather ", "arguments": {"city": "Paris"}}</tool_call>"#, PARIS),
        (r#"<tool_call>{"name": "weather", "arguments": "not an object"}</tool_call>"#, r#""not an object""#),
        (
            r#"<tool_call>{"name": "weather", "arguments": {"n": 12345678901234567890123, "f": 1.50}}</tool_call>"#,
            r#"{"n": 12345678901234567890123, "f": 1.50}"#,
        ),
        (
            r#"<tool_call>{"name": "weather", "arguments": {"text": "a </tool_call> b <tool_call> c"}}</tool_call>"#,
            r#"{"text": "a </tool_call> b <tool_call> c"}"#,
        ),
    ];
    for (reply, arguments) in table {
        check(HERMES, "", reply, &[call(name, arguments)]);
    }
    let two = r#"<tool_call>{"name": "a", "arguments": {}}<tool_call>{"name": "b", "arguments": {}}</tool_call>"#;
    check(HERMES, "", two, &[call("a", "{}"), call("b", "{}")]);
    let two = "<tool_call>{\"name\": \"a\"}\n{\"name\": \"b\"}</tool_call>";
    check(HERMES, "", two, &[call("a", "{}"), call("b", "{}")]);
    let two = r#"<tool_call>[{"name": "a"}, {"name": "b"}]</tool_call>"#;
    check(HERMES, "", two, &[call("a", "{}"), call("b", "{}")]);
}

#[test]
fn what_is_no_call_stays_content_to_the_last_byte() {
    for reply in [
        "Use the <tool_call> tag, and close it with </tool_call>.",
        "`<tool_call>` and `</tool_call>`",
        "<tool_call>",
        "<tool_call>\n",
        "<tool_call></tool_call>",
        "<tool_call> </tool_call> tail",
        "<tool_call>weather(Paris)</tool_call>",
        "<tool_call>{\"name\": 5}</tool_call>",
        "<tool_call>{\"city\": \"Paris\"}</tool_call>",
        "<tool_call>{name: weather}</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>[1, 2]</tool_call>",
        "<tool_call>{\"name\": \"\"}</tool_call>",
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Par",
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}",
        "<tool_call>{\"name\": \"weather\"} and so on",
        "a < b and <tool",
        "text\n```xml\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>\n```\nmore",
        "</tool_call>",
        "<think>not in this dialect</think>",
    ] {
        check(HERMES, "", reply, &[content(reply)]);
    }
}

#[test]
fn a_mistake_does_not_hide_a_right_call_behind_it() {
    let right = r#"<tool_call>{"name": "f", "arguments": {}}</tool_call>"#;
    for (mistake, shown) in [
        ("<tool_call>oops</tool_call>\n", "<tool_call>oops</tool_call>"),
        ("The <tool_call> tag: ", "The <tool_call> tag:"),
        ("<tool_call>{\"name\": \"g\", \"arguments\": {\"a\": ", "<tool_call>{\"name\": \"g\", \"arguments\": {\"a\":"),
        ("```\n<tool_call>{\"name\": \"g\"}</tool_call>\n```\n", "```\n<tool_call>{\"name\": \"g\"}</tool_call>\n```"),
    ] {
        check(HERMES, "", &format!("{mistake}{right}"), &[content(shown), call("f", "{}")]);
    }
}

#[test]
fn reasoning_is_split_off_at_the_beginning_of_a_reply_only() {
    check(THINKING, "", "<think>\nhm\n</think>\n\nYes.", &[reasoning("hm"), content("Yes.")]);
    check(THINKING, "", "\n<think>\n\n</think>\n\nYes.", &[content("Yes.")]);
    check(THINKING, "", "<think>cut off ", &[reasoning("cut off ")]);
    check(THINKING, "", "Yes. <think>no</think>", &[content("Yes. <think>no</think>")]);
    check(THINKING, "", "a </think> b", &[content("a </think> b")]);
    let opened = "<|im_start|>assistant\n<think>\n";
    check(THINKING, opened, "hm\n</think>\n\nYes.", &[reasoning("hm"), content("Yes.")]);
    check(THINKING, opened, "a <think> b</think>c", &[reasoning("a <think> b"), content("c")]);
    check(THINKING, "<think>\n\n</think>\n\n", "Yes.", &[content("Yes.")]);
}

#[test]
fn a_call_inside_unclosed_reasoning_is_a_call() {
    let reply = "<think>\nI look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    check(THINKING, "", reply, &[reasoning("I look."), call("f", "{}")]);
    let reply = "<think>The <tool_call> tag?</think>No.";
    check(THINKING, "", reply, &[reasoning("The <tool_call> tag?"), content("No.")]);
}

#[test]
fn without_tools_nothing_is_held_back_and_nothing_is_a_call() {
    let reply = r#"<tool_call>{"name": "f", "arguments": {}}</tool_call>"#;
    let mut splitter = HERMES.splitter("", ToolsOffered::No);
    assert_eq!(splitter.feed("<tool_call> \n"), [content("<tool_call> \n")]);
    assert_eq!(split(HERMES.splitter("", ToolsOffered::No), [reply]), [content(reply)]);
    let plain = Dialect::new(DialectName::Plain, ReasoningStyle::None);
    assert!(!plain.tool_prompt_supported());
    assert_eq!(split(plain.splitter("", ToolsOffered::Yes), [reply]), [content(reply)]);
}

#[test]
fn only_what_may_become_a_tag_is_held_back() {
    let mut splitter = HERMES.splitter("", ToolsOffered::Yes);
    assert_eq!(splitter.feed("a <b"), [content("a <b")]);
    assert_eq!(splitter.feed(" <tool"), []);
    assert_eq!(splitter.feed("box"), [content(" <toolbox")]);
    assert_eq!(splitter.feed(" <tool_call>x"), [content(" <tool_call>x")]);
}

#[test]
fn a_forced_call_goes_on_from_its_prefix() {
    let prefix = HERMES.forced_call_prefix(Some("weather")).unwrap();
    check(HERMES, "", &format!("{prefix}{PARIS}}}\n</tool_call>"), &[call("weather", PARIS)]);
    let prefix = HERMES.forced_call_prefix(None).unwrap();
    check(HERMES, "", &format!("{prefix}weather\", \"arguments\": {PARIS}}}\n</tool_call>"), &[call("weather", PARIS)]);
    assert_eq!(Dialect::new(DialectName::Plain, ReasoningStyle::None).forced_call_prefix(None), None);
}

fn fragments() -> impl Strategy<Value = Vec<&'static str>> {
    let fragment = prop::sample::select(vec![
        OPEN,
        CLOSE,
        THINK,
        END_THINK,
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}</tool_call>",
        "{\"name\": \"f\", \"arguments\": {}}",
        "{\"name\": \"g\"",
        "{\"x\": \"",
        "\"}",
        "}",
        "{",
        "[",
        "'",
        "\\",
        "```\n",
        "```json",
        "`",
        "\n",
        " ",
        "text",
        "é",
        "<",
        "</",
        "tool_call>",
    ]);
    prop::collection::vec(fragment, 0..10)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_cutting_equals_the_naive_twin(
        fragments in fragments(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        thinks in any::<bool>(),
        opened in any::<bool>(),
        offered in any::<bool>(),
    ) {
        let reply = fragments.concat();
        let (dialect, style) = if thinks { (THINKING, ReasoningStyle::ThinkTags) } else { (HERMES, ReasoningStyle::None) };
        let tools = if offered { ToolsOffered::Yes } else { ToolsOffered::No };
        let prompt = if opened { THINK } else { "" };
        let expected = naive(&reply, style, opened && thinks, tools);
        let characters: Vec<&str> = reply.split_inclusive(|_| true).collect();
        prop_assert_eq!(split(dialect.splitter(prompt, tools), [reply.as_str()]), expected.clone());
        prop_assert_eq!(split(dialect.splitter(prompt, tools), characters.iter().copied()), expected.clone());
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(reply.len() + 1)).filter(|at| reply.is_char_boundary(*at)).collect();
        at.sort_unstable();
        let mut pieces = Vec::new();
        let mut start = 0;
        for end in at.into_iter().chain([reply.len()]) {
            pieces.push(&reply[start..end]);
            start = end;
        }
        prop_assert_eq!(split(dialect.splitter(prompt, tools), pieces), expected);
    }

    #[test]
    fn no_text_is_lost_or_doubled(fragments in fragments(), thinks in any::<bool>()) {
        let reply = fragments.concat();
        let dialect = if thinks { THINKING } else { HERMES };
        let parts = split(dialect.splitter("", ToolsOffered::Yes), [reply.as_str()]);
        prop_assume!(!parts.iter().any(|part| matches!(part, OutputPart::ToolCall { .. })));
        let bare = |text: &str| text.split_whitespace().collect::<String>();
        let spoken: String = parts.iter().map(|part| match part {
            OutputPart::Content(text) | OutputPart::Reasoning(text) => bare(text),
            OutputPart::ToolCall { .. } => String::new(),
        }).collect();
        let written = bare(&reply);
        let without_tags = match written.strip_prefix(THINK) {
            Some(rest) if thinks => rest.replacen(END_THINK, "", 1),
            _ => written,
        };
        prop_assert_eq!(spoken, without_tags);
    }
}

fn tool() -> Tool {
    Tool {
        name: "weather".into(),
        description: Some("The \"weather\"".into()),
        parameters: json!({ "type": "object", "properties": { "city": { "type": "string" } } }),
    }
}

fn conversation() -> Vec<Message> {
    let calls = [("1", "{\"city\":\"Paris\"}"), ("2", "{\"city\": ")];
    let tool_calls =
        calls.map(|(id, arguments)| ToolCall { id: id.into(), name: "weather".into(), arguments: arguments.into() });
    let result = |id: &str, text: &str| Message { tool_call_id: Some(id.into()), ..Message::text(Role::Tool, text) };
    vec![
        Message::text(Role::System, "Be brief."),
        Message::text(Role::User, "Weather?"),
        Message { tool_calls: tool_calls.into(), ..Message::text(Role::Assistant, "Looking.") },
        result("1", "21"),
        result("2", "bad arguments"),
        Message::text(Role::System, "Answer now."),
    ]
}

#[test]
fn a_template_without_tools_gets_them_in_the_messages() {
    let structure = SpecialTokens::new([("<|im_start|>", 1), ("<|im_end|>", 2)]);
    let template = ChatTemplate::from_source(CHATML, None, None, structure).unwrap();
    let dialect = Dialect::of_template(Some(&template));
    assert_eq!(dialect, Dialect::new(DialectName::ChatMl, ReasoningStyle::None));
    let prepared = dialect.prepare(&conversation(), &[tool()]);
    assert_eq!(prepared.tools, []);
    let options = TemplateOptions { add_generation_prompt: true, ..TemplateOptions::default() };
    let prompt = template.render(&prepared.messages, &prepared.tools, &options).unwrap();
    insta::assert_snapshot!(prompt.text(), @r#"
    <|im_start|>system
    Be brief.

    # Tools

    You may call one or more functions to assist with the user query.

    You are provided with function signatures within <tools></tools> XML tags:
    <tools>
    {"type": "function", "function": {"name": "weather", "description": "The \"weather\"", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    </tools>

    For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
    <tool_call>
    {"name": <function-name>, "arguments": <args-json-object>}
    </tool_call><|im_end|>
    <|im_start|>user
    Weather?<|im_end|>
    <|im_start|>assistant
    Looking.
    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>
    <tool_call>
    {"name": "weather", "arguments": "{\"city\": "}
    </tool_call><|im_end|>
    <|im_start|>user
    <tool_response>
    21
    </tool_response>
    <tool_response>
    bad arguments
    </tool_response><|im_end|>
    <|im_start|>user
    [system message]
    Answer now.<|im_end|>
    <|im_start|>assistant
    "#);
}

#[test]
fn a_template_with_hermes_tools_renders_them_itself_and_to_the_same_text() {
    let source = include_str!("../../tests/templates/qwen2.5.jinja");
    let template = ChatTemplate::from_source(source, None, None, SpecialTokens::default()).unwrap();
    let dialect = Dialect::of_template(Some(&template));
    assert_eq!(dialect, Dialect::new(DialectName::Hermes, ReasoningStyle::None));
    let options = TemplateOptions { add_generation_prompt: true, ..TemplateOptions::default() };
    let own = dialect.prepare(&conversation(), &[tool()]);
    let own = template.render(&own.messages, &own.tools, &options).unwrap();
    let chatml = Dialect::new(DialectName::ChatMl, ReasoningStyle::None);
    let written = chatml.prepare(&conversation(), &[tool()]);
    let written = template.render(&written.messages, &written.tools, &options).unwrap();
    assert_eq!(own.text(), written.text());
}

#[test]
fn dialects_are_chosen_by_what_a_template_writes() {
    let of = |source: &str| {
        let template = ChatTemplate::from_source(source, None, None, SpecialTokens::default()).unwrap();
        Dialect::of_template(Some(&template))
    };
    assert_eq!(of(CHATML).name(), DialectName::ChatMl);
    let qwen3 = "{{ tools }}{{ messages[0].tool_calls }}<tool_call>{{ '</think>' }}";
    assert_eq!(of(qwen3), THINKING);
    let qwen35 = "{{ tools }}{{ messages[0].tool_calls }}<tool_call><function=f>";
    assert_eq!(of(qwen35).name(), DialectName::ChatMl);
    assert_eq!(Dialect::of_template(None).name(), DialectName::Plain);
    for name in DialectName::ALL {
        assert_eq!(DialectName::from_word(name.as_str()), Some(name));
    }
    assert_eq!(DialectName::from_word("klingon"), None);
}

#[test]
fn tools_without_a_system_message_get_one() {
    let chatml = Dialect::new(DialectName::ChatMl, ReasoningStyle::None);
    let user = Message::text(Role::User, "hi");
    let prepared = chatml.prepare(std::slice::from_ref(&user), &[tool()]);
    assert_eq!(prepared.messages.len(), 2);
    assert!(prepared.messages[0].content.starts_with("You are a helpful assistant.\n\n# Tools"));
    assert_eq!(chatml.prepare(std::slice::from_ref(&user), &[]).messages, [user]);
}

#[test]
fn reasoning_that_came_back_inside_the_text_is_taken_out() {
    let message = |text: &str| Message::text(Role::Assistant, text);
    let split = THINKING.split_history(message("<think>\nhm\n</think>\n\nYes."));
    assert_eq!((split.reasoning.as_deref(), split.content.as_str()), (Some("hm"), "Yes."));
    assert_eq!(THINKING.split_history(message("Yes.")), message("Yes."));
    assert_eq!(HERMES.split_history(message("<think>a</think>b")), message("<think>a</think>b"));
}
