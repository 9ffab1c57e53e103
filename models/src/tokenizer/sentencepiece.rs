//! Merges of a SentencePiece BPE vocabulary, rebuilt from its scores.
//!
//! GGUF files with `tokenizer.ggml.model = "llama"` carry pieces and scores but no merges. SentencePiece joins the
//! neighbours whose union has the best score, so every way to cut a piece into two pieces is a merge, and a better score
//! is an earlier merge. (Scores are negative ranks; reading them as unigram probabilities gives other tokens.)

use std::collections::HashMap;

/// How SentencePiece writes a space.
pub(super) const SPACE: char = '\u{2581}';

/// All merges of these pieces, best first: score, then id of the union, then ids of the halves.
pub(super) fn merges<'a>(pieces: impl Iterator<Item = (u32, &'a str, f32)>) -> Vec<(String, String)> {
    let pieces: Vec<(u32, &str, f32)> = pieces.collect();
    let ids: HashMap<&str, u32> = pieces.iter().map(|(id, text, _)| (*text, *id)).collect();
    let mut merges = Vec::new();
    for (id, text, score) in &pieces {
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(left_id), Some(right_id)) = (ids.get(left), ids.get(right)) {
                merges.push((*score, *id, *left_id, *right_id, left, right));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3))));
    merges.into_iter().map(|(.., left, right)| (left.to_owned(), right.to_owned())).collect()
}

/// The byte of a piece that is written as `<0x0A>`.
pub(super) fn byte_of(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// How a byte is written as a piece.
pub(super) fn byte_piece(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_into_two_pieces_is_a_merge_and_the_best_score_comes_first() {
        let pieces = [(0, "a", -1.0), (1, "b", -2.0), (2, "ab", -5.0), (3, "ba", -3.0), (4, "aba", -4.0)];
        let merges = merges(pieces.into_iter());
        let text: Vec<String> = merges.iter().map(|(l, r)| format!("{l}+{r}")).collect();
        assert_eq!(text, ["b+a", "a+ba", "ab+a", "a+b"]);
    }

    #[test]
    fn byte_pieces_come_back() {
        assert!((0..=255u8).all(|byte| byte_of(&byte_piece(byte)) == Some(byte)));
        assert_eq!([byte_of("<0x0>"), byte_of("<0xXY>"), byte_of("0x0A")], [None; 3]);
    }
}
