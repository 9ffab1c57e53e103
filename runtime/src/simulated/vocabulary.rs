//! The simulation's vocabulary: one token per byte, then three control tokens as ChatML names them.
//!
//! Token counts are therefore byte counts, the same on every machine.

/// Begins a message.
pub const IM_START: u32 = 256;
/// Ends a message: the end token of every scripted reply.
pub const IM_END: u32 = 257;
/// Ends a text.
pub const END_OF_TEXT: u32 = 258;
/// Tokens of the vocabulary.
pub const VOCABULARY: usize = 259;
/// The control tokens as they are written, with their ids.
pub const CONTROL_TOKENS: [(&str, u32); 3] =
    [("<|im_start|>", IM_START), ("<|im_end|>", IM_END), ("<|endoftext|>", END_OF_TEXT)];

/// The tokens of raw model text, in which control tokens are written out.
pub fn encode(text: &str) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let control = CONTROL_TOKENS.iter().find_map(|(name, id)| Some((rest.strip_prefix(name)?, *id)));
        if let Some((after, id)) = control {
            tokens.push(id);
            rest = after;
            continue;
        }
        // Bytes up to the next place where a control token could begin.
        let next = rest.bytes().skip(1).position(|byte| byte == b'<').map_or(rest.len(), |at| at + 1);
        let (bytes, after) = rest.split_at(next);
        tokens.extend(bytes.bytes().map(u32::from));
        rest = after;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_bytes_and_control_tokens_are_one_token_each() {
        assert!(encode("").is_empty());
        assert_eq!(encode("aé"), [0x61, 0xc3, 0xa9]);
        assert_eq!(encode("<<|im_end|>x"), [u32::from(b'<'), IM_END, u32::from(b'x')]);
        assert_eq!(encode("<|im_end"), "<|im_end".bytes().map(u32::from).collect::<Vec<_>>());
        assert_eq!(encode("é<|im_start|><|endoftext|>"), [0xc3, 0xa9, IM_START, END_OF_TEXT]);
    }
}
