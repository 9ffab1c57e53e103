//! Finds tokens that are matched as whole strings before any merge: control and user-defined ones.
//!
//! Owns one search rule, leftmost and longest, as the `tokenizers` library has it for added tokens. Which tokens are in
//! a set, and when it is applied, is decided by [`super::Tokenizer`].

use std::collections::HashMap;
use std::ops::Range;

/// A set of strings with their token ids.
#[derive(Clone, Debug)]
pub struct SpecialTokens {
    ids: HashMap<Box<str>, u32>,
    /// By first byte: the lengths that occur, longest first.
    lengths: Vec<Vec<usize>>,
}

impl Default for SpecialTokens {
    fn default() -> Self {
        Self { ids: HashMap::new(), lengths: vec![Vec::new(); 256] }
    }
}

impl SpecialTokens {
    /// A set of strings. Empty strings are left out: they would match everywhere.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (&'a str, u32)>) -> Self {
        let mut set = Self::default();
        for (text, id) in tokens {
            let Some(first) = text.bytes().next() else { continue };
            set.ids.insert(text.into(), id);
            let lengths = &mut set.lengths[usize::from(first)];
            if let Err(at) = lengths.binary_search_by(|length| text.len().cmp(length)) {
                lengths.insert(at, text.len());
            }
        }
        set
    }

    /// Whether there are no strings in it.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The id of exactly this string.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// The strings and their ids, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.ids.iter().map(|(text, id)| (&**text, *id))
    }

    /// The longest string that starts at byte `at`, with its length in bytes and its id.
    pub fn match_at(&self, text: &str, at: usize) -> Option<(usize, u32)> {
        let first = *text.as_bytes().get(at)?;
        self.lengths[usize::from(first)].iter().find_map(|length| {
            let candidate = text.get(at..at + length)?;
            Some((*length, *self.ids.get(candidate)?))
        })
    }

    /// The first match at or after byte `from`.
    pub fn find(&self, text: &str, from: usize) -> Option<(Range<usize>, u32)> {
        let bytes = text.as_bytes();
        (from..bytes.len()).find_map(|at| {
            let (length, id) = self.match_at(text, at)?;
            Some((at..at + length, id))
        })
    }

    /// The text in order, cut into matches and what lies between them; empty stretches are left out.
    pub fn split<'a>(&self, text: &'a str) -> Vec<Segment<'a>> {
        let mut segments = Vec::new();
        let mut end = 0;
        while let Some((range, id)) = self.find(text, end) {
            if range.start > end {
                segments.push(Segment::Text(&text[end..range.start]));
            }
            segments.push(Segment::Token(id));
            end = range.end;
        }
        if end < text.len() {
            segments.push(Segment::Text(&text[end..]));
        }
        segments
    }
}

/// A stretch of a text that was searched for special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// A match.
    Token(u32),
    /// Text without matches.
    Text(&'a str),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_leftmost_longest_string_wins() {
        let set = SpecialTokens::new([("<a>", 1), ("<a><b>", 2), ("a><", 3), ("", 9), ("é", 4)]);
        assert_eq!(
            set.split("x<a><b>é<a"),
            [Segment::Text("x"), Segment::Token(2), Segment::Token(4), Segment::Text("<a")]
        );
        assert_eq!(set.split(""), []);
        assert_eq!(SpecialTokens::default().split("<a>"), [Segment::Text("<a>")]);
    }

    proptest! {
        #[test]
        fn the_search_equals_trying_every_string_everywhere(
            strings in prop::collection::vec("[ab<é]{1,3}", 0..6),
            text in "[ab<é]{0,20}",
        ) {
            let set = SpecialTokens::new(strings.iter().zip(0..).map(|(s, i)| (s.as_str(), i)));
            for at in 0..=text.len() {
                let naive = text.get(at..).and_then(|rest| {
                    strings.iter().filter(|s| rest.starts_with(s.as_str())).map(|s| s.len()).max()
                });
                prop_assert_eq!(set.match_at(&text, at).map(|(length, _)| length), naive);
            }
        }
    }
}
