//! A conversation through a chat template, with the turns that the model generated itself put in as tokens.
//!
//! Owns what is found out about a template by rendering probes: how turns are framed, whether user and assistant must
//! alternate, whether there may be a system message. Never knows a tokenizer: its caller encodes.

use std::sync::Arc;

use plimsoll_models::chat::{Message, Role};
use plimsoll_models::dialect::Dialect;
use plimsoll_models::template::{
    ChatTemplate, RenderedPrompt, TemplateOptions, merge_user_turns, system_into_first_user, unescape,
};
use serde_json::{Map, Value};

use super::{Conversation, Ending, Rendered, TextError, TurnFrame};

/// What stands in for a spoken turn while its conversation is rendered: the mark, the place of the turn, the mark. The
/// character is for private use; a conversation that holds the mark itself is rendered from its texts.
const MARK: &str = "\u{e000}plimsoll-turn-";
const MARK_END: char = '\u{e000}';

/// Tokens and back, as the text side of a model does it.
pub(super) trait Codec {
    /// A stretch of a rendered prompt, in its escaped form. Nothing is put in front.
    fn encode_escaped(&self, escaped: &str) -> Vec<u32>;
    /// The ids with what the model expects at the beginning of every prompt.
    fn with_beginning(&self, tokens: Vec<u32>) -> Vec<u32>;
    /// Tokens as text.
    fn decode(&self, tokens: &[u32]) -> String;
    /// Tokens that end a reply.
    fn end_tokens(&self) -> &[u32];
}

/// How a template frames turns.
#[derive(Clone, Debug)]
struct TurnShape {
    frame: TurnFrame,
    /// What opens an assistant turn of the history, escaped.
    reply_open: String,
}

/// A template, its dialect, and what was found out about both.
#[derive(Debug)]
pub(super) struct TemplateText {
    template: Arc<ChatTemplate>,
    dialect: Dialect,
    alternates: bool,
    no_system: bool,
    shape: Option<TurnShape>,
}

impl TemplateText {
    /// Looks at a template by rendering probes.
    pub fn new(template: Arc<ChatTemplate>, dialect: Dialect, codec: &impl Codec) -> Self {
        let mut text = Self { template, dialect, alternates: false, no_system: false, shape: None };
        let probe = |text: &Self, roles: &[Role]| {
            let messages: Vec<Message> = roles.iter().map(|role| Message::text(*role, "probe")).collect();
            text.probe(&messages, Ending::Reply).is_some()
        };
        if probe(&text, &[Role::User]) {
            text.alternates = !probe(&text, &[Role::User, Role::User]);
            text.no_system = !probe(&text, &[Role::System, Role::User]);
        }
        text.shape = text.find_shape(codec);
        text
    }

    /// How turns are appended to a live sequence.
    pub fn turn_frame(&self) -> Option<&TurnFrame> {
        self.shape.as_ref().map(|shape| &shape.frame)
    }

    /// Renders and encodes.
    pub fn render(&self, conversation: Conversation<'_>, codec: &impl Codec) -> Result<Rendered, TextError> {
        if let Some(spliced) = self.render_spoken(conversation, codec)? {
            return Ok(spliced);
        }
        let escaped = self.escaped(conversation)?;
        let tokens = codec.with_beginning(codec.encode_escaped(&escaped));
        let reply_lead = self.reply_lead(&escaped, conversation.ending, codec);
        Ok(Rendered { text: unescape(&escaped).into_owned(), tokens, reply_lead })
    }

    /// What of the prompt's end already belongs to the reply: reasoning that the template opens.
    fn reply_lead(&self, escaped: &str, ending: Ending, codec: &impl Codec) -> Vec<u32> {
        let Some(shape) = self.shape.as_ref().filter(|_| ending == Ending::Reply) else { return Vec::new() };
        let Some(at) = escaped.rfind(&shape.reply_open) else { return Vec::new() };
        codec.encode_escaped(&escaped[at + shape.reply_open.len()..])
    }

    /// `None` where nothing was spoken or the template does not allow it.
    fn render_spoken(&self, conversation: Conversation<'_>, codec: &impl Codec) -> Result<Option<Rendered>, TextError> {
        let Some(shape) = &self.shape else { return Ok(None) };
        let Conversation { messages, spoken, .. } = conversation;
        let spoken: Vec<(usize, &[u32])> = spoken
            .iter()
            .enumerate()
            .filter_map(|(place, tokens)| Some((place, tokens.as_deref()?)))
            .filter(|(place, _)| messages.get(*place).is_some_and(|message| message.role == Role::Assistant))
            .collect();
        let marked = |message: &Message| message.content.contains(MARK);
        if spoken.is_empty() || messages.iter().any(marked) {
            return Ok(None);
        }
        let mut standing = messages.to_vec();
        for (place, _) in &spoken {
            standing[*place] = Message::text(Role::Assistant, mark(*place));
        }
        let escaped = self.escaped(Conversation { messages: &standing, ..conversation })?;
        let mut tokens = Vec::with_capacity(escaped.len() / 3);
        let mut text = String::with_capacity(escaped.len());
        let mut rest = escaped.as_str();
        for (place, said) in &spoken {
            let Some((before, behind)) = rest.split_once(&mark(*place)) else { return Ok(None) };
            // What the template writes between the opening and the text (an empty block of reasoning) was not said.
            let Some(open) = before.rfind(&shape.reply_open) else { return Ok(None) };
            let before = &before[..open + shape.reply_open.len()];
            let end = said.iter().rposition(|token| !codec.end_tokens().contains(token)).map_or(0, |last| last + 1);
            tokens.extend(codec.encode_escaped(before));
            tokens.extend_from_slice(&said[..end]);
            text.push_str(&unescape(before));
            text.push_str(&codec.decode(&said[..end]));
            rest = behind;
        }
        if rest.contains(MARK) {
            return Ok(None);
        }
        tokens.extend(codec.encode_escaped(rest));
        text.push_str(&unescape(rest));
        let reply_lead = self.reply_lead(rest, conversation.ending, codec);
        Ok(Some(Rendered { text, tokens: codec.with_beginning(tokens), reply_lead }))
    }

    /// Renders with the template in the form its dialect wants.
    fn escaped(&self, conversation: Conversation<'_>) -> Result<String, TextError> {
        if !conversation.tools.is_empty() && !self.dialect.tool_prompt_supported() {
            return Err(TextError::NoToolFormat);
        }
        let messages: Vec<_> =
            conversation.messages.iter().cloned().map(|message| self.dialect.split_history(message)).collect();
        let prepared = self.dialect.prepare(&messages, conversation.tools);
        let mut messages = prepared.messages;
        if self.no_system {
            messages = system_into_first_user(messages);
        }
        if self.alternates {
            messages = merge_user_turns(messages);
        }
        let mut variables: Map<String, Value> = conversation.variables.clone();
        let enable_thinking = match variables.remove("enable_thinking") {
            Some(Value::Bool(enabled)) => Some(enabled),
            Some(other) => {
                variables.insert("enable_thinking".into(), other);
                None
            }
            None => None,
        };
        let options = TemplateOptions {
            add_generation_prompt: conversation.ending == Ending::Reply,
            enable_thinking,
            variables,
            now: None,
        };
        let rendered = self.template.render(&messages, &prepared.tools, &options);
        rendered.map(RenderedPrompt::into_escaped).map_err(|error| TextError::Template(error.to_string()))
    }

    fn probe(&self, messages: &[Message], ending: Ending) -> Option<String> {
        let conversation = Conversation { messages, tools: &[], variables: &Map::new(), spoken: &[], ending };
        self.escaped(conversation).ok()
    }

    fn find_shape(&self, codec: &impl Codec) -> Option<TurnShape> {
        const QUESTION: &str = "plimsoll-probe-question";
        const ANSWER: &str = "plimsoll-probe-answer";
        const REMARK: &str = "plimsoll-probe-remark";
        let turns = [
            Message::text(Role::User, QUESTION),
            Message::text(Role::Assistant, ANSWER),
            Message::text(Role::User, REMARK),
        ];
        let question = self.probe(&turns[..1], Ending::History)?;
        let answered = self.probe(&turns[..2], Ending::History)?;
        let going_on = self.probe(&turns, Ending::Reply)?;
        let (_, question_end) = question.split_once(QUESTION)?;
        let (_, reply_end) = answered.split_once(ANSWER)?;
        let (_, rest) = going_on.split_once(QUESTION)?;
        let (before_answer, rest) = rest.split_once(ANSWER)?;
        let (between, reply_begin) = rest.split_once(REMARK)?;
        let reply_open = before_answer.strip_prefix(question_end)?;
        let user_begin = between.strip_prefix(reply_end)?;
        let reply_end = codec.encode_escaped(reply_end);
        // A turn that ends otherwise cannot be appended to behind a reply.
        reply_end.first().filter(|token| codec.end_tokens().contains(token))?;
        let frame = TurnFrame {
            reply_end,
            user_begin: codec.encode_escaped(user_begin),
            reply_begin: codec.encode_escaped(reply_begin),
            reply_begin_text: unescape(reply_begin).into_owned(),
        };
        Some(TurnShape { frame, reply_open: reply_open.to_owned() })
    }
}

fn mark(place: usize) -> String {
    format!("{MARK}{place}{MARK_END}")
}
