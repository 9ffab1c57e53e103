//! From tokens' bytes to text that may be shown.
//!
//! A token may end inside a character. The detokenizer holds back the bytes of an unfinished character and nothing else,
//! and replaces invalid bytes by U+FFFD, one per maximal subpart as the Unicode standard recommends (section 3.9), so
//! that the pieces put together equal `String::from_utf8_lossy` of all bytes. It knows nothing of vocabularies or stop
//! strings. Naive twin: `from_utf8_lossy` itself.

/// Turns a stream of bytes into a stream of text, for one reply.
///
/// ```
/// use plimsoll_runtime::detokenizer::Detokenizer;
///
/// let mut detokenizer = Detokenizer::default();
/// assert_eq!(detokenizer.feed(b"na\xc3"), "na");
/// assert_eq!(detokenizer.feed(b"\xafve \xf0\x9f"), "ïve ");
/// assert_eq!(detokenizer.finish(), "\u{fffd}");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// The first bytes of a character whose last bytes have not come, at most three.
    held: Vec<u8>,
}

impl Detokenizer {
    /// The text that is certain once these bytes have come.
    #[must_use]
    pub fn feed(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.held.len());
        let mut kept = 0;
        for chunk in self.held.utf8_chunks() {
            text.push_str(chunk.valid());
            kept += chunk.valid().len();
            let invalid = chunk.invalid();
            // At the very end, an error without a length is a character that may still be completed.
            let at_end = kept + invalid.len() == self.held.len();
            if at_end && may_be_completed(invalid) {
                break;
            }
            if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                kept += invalid.len();
            }
        }
        self.held.drain(..kept);
        text
    }

    /// The end of the reply: what was held back, as U+FFFD. The detokenizer is as good as new afterwards.
    #[must_use]
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}

/// Whether more bytes could make a character of these.
fn may_be_completed(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> String {
        let mut detokenizer = Detokenizer::default();
        let mut text: String = pieces.into_iter().map(|piece| detokenizer.feed(piece)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    #[test]
    fn text_cut_at_every_byte_comes_out_whole() {
        let text = "a é 漢字 👩‍👩‍👧 e\u{301} \u{10ffff}\0z";
        for cut in 0..=text.len() {
            let (a, b) = text.as_bytes().split_at(cut);
            assert_eq!(stream([a, b]), text, "cut at byte {cut}");
        }
        assert_eq!(stream(text.as_bytes().chunks(1)), text);
    }

    #[test]
    fn only_an_unfinished_character_is_held_back() {
        let mut detokenizer = Detokenizer::default();
        assert_eq!(detokenizer.feed(b"ab"), "ab");
        assert_eq!(detokenizer.feed("é".as_bytes()), "é");
        assert_eq!(detokenizer.feed(&[b'x', 0xf0, 0x9f, 0x98]), "x");
        assert_eq!(detokenizer.feed(&[]), "");
        assert_eq!(detokenizer.feed(&[0x80, b'y']), "😀y");
        assert_eq!(detokenizer.feed(&[0xff]), "\u{fffd}", "no byte makes this one valid");
        assert_eq!(detokenizer.finish(), "");
    }

    #[test]
    fn a_character_that_is_broken_off_is_replaced_as_soon_as_that_is_certain() {
        let mut detokenizer = Detokenizer::default();
        assert_eq!(detokenizer.feed(&[0xe6, 0xbc]), "");
        assert_eq!(detokenizer.feed(b"!"), "\u{fffd}!");
    }

    #[test]
    fn after_the_end_it_is_as_good_as_new() {
        let mut detokenizer = Detokenizer::default();
        let _ = detokenizer.feed(&[0xe6]);
        assert_eq!(detokenizer.finish(), "\u{fffd}");
        assert_eq!(detokenizer.feed(&[0xbc]), "\u{fffd}");
    }

    /// Bytes that meet the borders of UTF-8 often.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            any::<u8>(),
            prop::sample::select(vec![
                0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc2, 0xe0, 0xed, 0xef, 0xf0, 0xf4
            ]),
        ];
        prop::collection::vec(byte, 0..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn the_pieces_together_equal_the_whole(bytes in bytes(), cuts in prop::collection::vec(0usize..40, 0..6)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let whole = String::from_utf8_lossy(&bytes);
            prop_assert_eq!(stream(cuts.windows(2).map(|w| &bytes[w[0]..w[1]])), whole.as_ref());
            prop_assert_eq!(stream(bytes.chunks(1)), whole.as_ref());
        }

        #[test]
        fn never_more_than_three_bytes_are_held(bytes in bytes()) {
            let mut detokenizer = Detokenizer::default();
            for byte in &bytes {
                let _ = detokenizer.feed(&[*byte]);
                prop_assert!(detokenizer.held.len() <= 3);
            }
        }
    }
}
