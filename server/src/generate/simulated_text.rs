//! The text side of the simulated engine: one token per byte, three control tokens, ChatML.
//!
//! Owns the rendering of simulated prompts. Real models render with the template of their own file.

use plimsoll_models::chat::Role;
use plimsoll_runtime::simulated::{CONTROL_TOKENS, END_OF_TEXT, IM_END, IM_START, VOCABULARY};
use serde_json::{Value, json};

use super::model_text::{Conversation, ModelText, PlainSplitter, Rendered, Splitter};
use crate::wire::error::ServerError;

/// What ends a simulated reply.
const END_TOKENS: [u32; 2] = [IM_END, END_OF_TEXT];

/// The text side of a simulation.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimulatedText;

/// Text and tokens side by side, so that control tokens come from the template alone.
struct Prompt(Rendered);

impl Prompt {
    fn control(&mut self, token: u32) {
        self.0.tokens.push(token);
        self.0.text.push_str(&written(&[token]));
    }

    fn text(&mut self, text: &str) {
        self.0.tokens.extend(text.bytes().map(u32::from));
        self.0.text.push_str(text);
    }

    fn turn(&mut self, role: &str, text: &str) {
        self.control(IM_START);
        self.text(&format!("{role}\n{text}"));
        self.control(IM_END);
        self.text("\n");
    }
}

fn written(tokens: &[u32]) -> String {
    let mut bytes = Vec::with_capacity(tokens.len());
    for token in tokens {
        match u8::try_from(*token) {
            Ok(byte) => bytes.push(byte),
            Err(_) => {
                let name = CONTROL_TOKENS.iter().find(|(_, id)| id == token).map_or("", |(name, _)| name);
                bytes.extend_from_slice(name.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl ModelText for SimulatedText {
    fn vocab(&self) -> usize {
        VOCABULARY
    }

    fn end_tokens(&self) -> &[u32] {
        &END_TOKENS
    }

    fn banned(&self) -> &[u32] {
        &[]
    }

    fn render(&self, conversation: Conversation<'_>) -> Result<Rendered, ServerError> {
        let Conversation { messages, tools, .. } = conversation;
        let mut prompt = Prompt(Rendered { text: String::new(), tokens: Vec::new() });
        let (head, turns) = match messages {
            [head, turns @ ..] if head.role == Role::System => (head.content.as_str(), turns),
            turns => ("", turns),
        };
        let tools: String =
            tools.iter().map(|tool| format!("\n{}", json!({"type": "function", "function": tool}))).collect();
        if !head.is_empty() || !tools.is_empty() {
            let tools = if tools.is_empty() { tools } else { format!("\n\n# Tools\n<tools>{tools}\n</tools>") };
            prompt.turn("system", &format!("{head}{tools}"));
        }
        for message in turns {
            let mut text = message.content.clone();
            for call in &message.tool_calls {
                // Arguments that do not parse stay the text they are.
                let arguments: Value =
                    serde_json::from_str(&call.arguments).unwrap_or_else(|_| call.arguments.clone().into());
                let call = json!({"name": call.name, "arguments": arguments});
                text.push_str(&format!("\n<tool_call>\n{call}\n</tool_call>"));
            }
            prompt.turn(message.role.as_str(), text.trim_start_matches('\n'));
        }
        prompt.control(IM_START);
        prompt.text("assistant\n");
        Ok(prompt.0)
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    fn encode_part(&self, text: &str) -> Vec<u32> {
        self.encode(text)
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        u8::try_from(token).map(|byte| vec![byte]).unwrap_or_default()
    }

    fn decode(&self, tokens: &[u32]) -> String {
        written(tokens)
    }

    fn splitter(&self, _conversation: Conversation<'_>) -> Box<dyn Splitter> {
        Box::new(PlainSplitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_models::chat::Message;

    #[test]
    fn control_tokens_in_messages_are_text() {
        let messages = [Message::text(Role::User, "<|im_end|>")];
        let conversation = Conversation { messages: &messages, tools: &[], variables: &serde_json::Map::new() };
        let rendered = SimulatedText.render(conversation).unwrap();
        assert_eq!(rendered.tokens.iter().filter(|token| **token == IM_END).count(), 1);
        assert_eq!(rendered.text, "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n");
    }
}
