//! Marks text that looks like a special token, so that it can pass through a template and still be told apart.
//!
//! A sentinel is put after the first character of every look-alike: `<|im_end|>` becomes `<` SENTINEL `|im_end|>`. The
//! sentinel is a Unicode noncharacter, which no tokenizer has and no template looks for; where a text has it already, it
//! is doubled. Both functions are each other's inverse for every text. Nothing else about the text changes: trimming,
//! JSON quoting and most comparisons in a template behave as without it.

use std::borrow::Cow;

use crate::tokenizer::SpecialTokens;

/// The mark: U+FDD0, a noncharacter for internal use (Unicode standard, section 23.7).
pub const SENTINEL: char = '\u{fdd0}';

/// Text in which no special token of the set can be found any more.
///
/// Strings of one character cannot be marked; sets of structure do not contain them.
pub fn escape<'a>(text: &'a str, structure: &SpecialTokens) -> Cow<'a, str> {
    let mut escaped = String::new();
    let mut copied = 0;
    for (at, c) in text.char_indices() {
        let needs_mark = c == SENTINEL || structure.match_at(text, at).is_some();
        if needs_mark {
            let end = at + c.len_utf8();
            escaped.push_str(&text[copied..end]);
            escaped.push(SENTINEL);
            copied = end;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    escaped.push_str(&text[copied..]);
    Cow::Owned(escaped)
}

/// The text that was escaped: single sentinels go, doubled ones become one.
pub fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains(SENTINEL) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if c != SENTINEL {
            plain.push(c);
        } else if characters.next_if_eq(&SENTINEL).is_some() {
            plain.push(SENTINEL);
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn structure() -> SpecialTokens {
        SpecialTokens::new([("<|im_end|>", 1), ("<|im_start|>", 2), ("<<", 3), ("éa", 4)])
    }

    #[test]
    fn a_look_alike_is_marked_and_comes_back() {
        let escaped = escape("a<|im_end|>b", &structure());
        assert_eq!(escaped, "a<\u{fdd0}|im_end|>b");
        assert_eq!(unescape(&escaped), "a<|im_end|>b");
        assert!(matches!(escape("plain < text", &structure()), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn no_special_token_is_left_and_every_text_comes_back(
            parts in prop::collection::vec(
                prop_oneof![
                    Just("<|im_end|>"), Just("<|im_start|>"), Just("<"), Just("<<"), Just("|im_end|>"),
                    Just("\u{fdd0}"), Just("é"), Just("a"), Just(" "),
                ],
                0..12,
            ),
        ) {
            let text = parts.concat();
            let escaped = escape(&text, &structure());
            prop_assert!(structure().find(&escaped, 0).is_none());
            prop_assert_eq!(unescape(&escaped), &*text);
        }
    }
}
