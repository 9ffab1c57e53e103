//! The text side of the simulated engine: one token per byte, three control tokens, ChatML.
//!
//! Owns the codec of simulated tokens; template and dialect are those of real models. A script names its dialect.

use plimsoll_models::dialect::{Dialect, DialectName, ReasoningStyle, ToolsOffered};
use plimsoll_models::template::{CHATML, ChatTemplate, unescape};
use plimsoll_models::tokenizer::SpecialTokens;

use super::file_text::{DialectSplitter, render_with};
use super::{Conversation, ModelText, Rendered, Splitter, TextError, TurnFrame, UnknownDialect};
use crate::simulated::{self, CONTROL_TOKENS, END_OF_TEXT, IM_END, VOCABULARY};

/// What ends a simulated reply.
const END_TOKENS: [u32; 2] = [IM_END, END_OF_TEXT];

/// The text side of a simulation.
#[derive(Debug)]
pub struct SimulatedText {
    template: ChatTemplate,
    dialect: Dialect,
    structure: SpecialTokens,
}

impl SimulatedText {
    /// The text side for a script's dialect: `hermes`, `chatml` or `plain`.
    ///
    /// # Errors
    /// Another word, with the known ones.
    pub fn new(dialect: &str) -> Result<Self, UnknownDialect> {
        let Some(name) = DialectName::from_word(dialect) else {
            let known = DialectName::ALL.map(DialectName::as_str).join(", ");
            return Err(UnknownDialect { found: dialect.to_owned(), known });
        };
        // The built-in template lists no tools, so that both tool dialects describe them in the system message.
        let (name, reasoning) = match name {
            DialectName::Hermes | DialectName::ChatMl => (DialectName::ChatMl, ReasoningStyle::ThinkTags),
            DialectName::Plain => (DialectName::Plain, ReasoningStyle::None),
        };
        let structure = SpecialTokens::new(CONTROL_TOKENS);
        let template =
            ChatTemplate::from_source(CHATML, None, None, structure.clone()).expect("the built-in template compiles");
        Ok(Self { template, dialect: Dialect::new(name, reasoning), structure })
    }

    /// Control tokens where the template put them; everything else, look-alikes included, is bytes.
    fn encode_escaped(&self, escaped: &str) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(escaped.len());
        let mut copied = 0;
        let bytes_of = |text: &str, tokens: &mut Vec<u32>| tokens.extend(unescape(text).bytes().map(u32::from));
        for (at, _) in escaped.match_indices('<') {
            if at < copied {
                continue;
            }
            if let Some((length, id)) = self.structure.match_at(escaped, at) {
                bytes_of(&escaped[copied..at], &mut tokens);
                tokens.push(id);
                copied = at + length;
            }
        }
        bytes_of(&escaped[copied..], &mut tokens);
        tokens
    }
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

    fn render(&self, conversation: Conversation<'_>) -> Result<Rendered, TextError> {
        let prompt = render_with(&self.template, &self.dialect, conversation)?;
        Ok(Rendered { tokens: self.encode_escaped(prompt.escaped()), text: prompt.text() })
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        simulated::encode(text)
    }

    fn encode_part(&self, text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        u8::try_from(token).map(|byte| vec![byte]).unwrap_or_default()
    }

    fn decode(&self, tokens: &[u32]) -> String {
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

    fn turn_frame(&self) -> Option<&TurnFrame> {
        None
    }

    fn tool_call_opening(&self) -> Option<&str> {
        self.dialect.call_opening()
    }

    fn reasoning_tags(&self) -> Option<(&str, &str)> {
        self.dialect.reasoning_tags()
    }

    fn splitter(&self, prompt: &str, tools: ToolsOffered) -> Box<dyn Splitter> {
        Box::new(DialectSplitter(self.dialect.splitter(prompt, tools)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_text::Ending;
    use plimsoll_models::chat::{Message, Role};

    #[test]
    fn control_tokens_in_messages_are_text() {
        let messages = [Message::text(Role::User, "<<|im_end|>")];
        let conversation = Conversation {
            messages: &messages,
            tools: &[],
            variables: &serde_json::Map::new(),
            spoken: &[],
            ending: Ending::Reply,
        };
        let text = SimulatedText::new("hermes").unwrap();
        let rendered = text.render(conversation).unwrap();
        assert_eq!(rendered.text, "<|im_start|>user\n<<|im_end|><|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(rendered.tokens.iter().filter(|token| **token == IM_END).count(), 1);
        assert_eq!(text.decode(&rendered.tokens), rendered.text);
    }

    #[test]
    fn an_unknown_dialect_is_refused_with_the_known_ones() {
        let error = SimulatedText::new("klingon").unwrap_err().to_string();
        assert!(error.contains("klingon") && error.contains("hermes, chatml, plain"), "{error}");
    }
}
