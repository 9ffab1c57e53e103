//! The vocabulary of a model file: what each token is, the bytes it contributes to text, and the named ids.
//!
//! Owns the checks that lists have the same length and ids lie within the vocabulary. Bytes of all tokens lie in one
//! buffer, so that decoding a token is a slice and a vocabulary of 250 000 tokens is two allocations.

use std::collections::HashMap;

use crate::gguf::{GgufFile, MetadataArray, MetadataValue, Strings};

use super::byte_level;
use super::error::TokenizerError;
use super::sentencepiece;

/// Most tokens; four times the largest published vocabulary.
const MAX_TOKENS: usize = 1 << 20;

/// Longest piece, in bytes; the longest published ones, runs of spaces, have some hundreds. Rebuilding merges looks at
/// every way to cut a piece in two, so an absurd one would take hours.
pub(super) const MAX_PIECE_BYTES: usize = 4096;

/// What a token is (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Made by merges, part of text.
    Normal,
    /// Stands for text that has no token.
    Unknown,
    /// Structure: turns, ends, BOS. Never part of text.
    Control,
    /// Matched as a whole string; part of the output text (`<tool_call>`, runs of newlines).
    UserDefined,
    /// Padding of the table; never matched.
    Unused,
    /// One byte, for text that has no other token (SentencePiece).
    Byte,
}

impl TokenKind {
    fn from_number(id: usize, number: i64) -> Result<Self, TokenizerError> {
        Ok(match number {
            // 0 is "undefined" in the format; writers that do not know leave it.
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            found => return Err(TokenizerError::UnknownTokenType { id, found }),
        })
    }
}

/// How pieces are written in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each byte as a printable character (`tokenizer.ggml.model = "gpt2"`).
    ByteLevel,
    /// Plain text with `▁` for a space (`tokenizer.ggml.model = "llama"`).
    SentencePiece,
}

/// Kinds and bytes of all tokens.
#[derive(Debug)]
pub(super) struct Vocabulary {
    kinds: Vec<TokenKind>,
    bytes: Vec<u8>,
    /// `offsets[id]..offsets[id + 1]` are the bytes of token `id`.
    offsets: Vec<u32>,
    /// The written form of tokens that are no plain text.
    names: HashMap<u32, Box<str>>,
}

impl Vocabulary {
    pub(super) fn from_gguf(file: &GgufFile, spelling: Spelling) -> Result<Self, TokenizerError> {
        let pieces: Strings = file.require("tokenizer.ggml.tokens")?;
        let count = pieces.len();
        if !(1..=MAX_TOKENS).contains(&count) {
            return Err(TokenizerError::VocabularySize { found: count, limit: MAX_TOKENS });
        }
        let kinds = kinds(file, count)?;
        let mut bytes = Vec::new();
        let mut offsets = Vec::with_capacity(count + 1);
        let mut names = HashMap::new();
        offsets.push(0);
        for (id, (piece, kind)) in pieces.zip(&kinds).enumerate() {
            if piece.len() > MAX_PIECE_BYTES {
                return Err(TokenizerError::PieceTooLong { id, found: piece.len(), limit: MAX_PIECE_BYTES });
            }
            match (kind, spelling) {
                (TokenKind::Normal, Spelling::ByteLevel) => byte_level::decode(piece, &mut bytes),
                (TokenKind::UserDefined, Spelling::ByteLevel) => bytes.extend(piece.as_bytes()),
                (TokenKind::Normal | TokenKind::UserDefined, Spelling::SentencePiece) => {
                    bytes.extend(piece.replace(sentencepiece::SPACE, " ").as_bytes());
                }
                (TokenKind::Byte, _) => bytes.extend(sentencepiece::byte_of(piece)),
                (TokenKind::Unknown | TokenKind::Control | TokenKind::Unused, _) => {}
            }
            if !matches!(kind, TokenKind::Normal) {
                names.insert(id as u32, piece.into());
            }
            offsets.push(u32::try_from(bytes.len()).map_err(|_| TokenizerError::Library {
                reason: format!("the tokens are longer than {} bytes together", u32::MAX),
            })?);
        }
        check_ids(file, count)?;
        Ok(Self { kinds, bytes, offsets, names })
    }

    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(super) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    pub(super) fn kinds(&self) -> &[TokenKind] {
        &self.kinds
    }

    /// Bytes the token contributes to text; none for control, unknown and unused ones.
    pub(super) fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let start = *self.offsets.get(id as usize)?;
        let end = *self.offsets.get(id as usize + 1)?;
        Some(&self.bytes[start as usize..end as usize])
    }

    /// The written form of a token that is no plain text.
    pub(super) fn name(&self, id: u32) -> Option<&str> {
        self.names.get(&id).map(|name| &**name)
    }
}

fn kinds(file: &GgufFile, count: usize) -> Result<Vec<TokenKind>, TokenizerError> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let Some(array) = file.get::<Vec<i32>>(KEY)? else { return Ok(vec![TokenKind::Normal; count]) };
    if array.len() != count {
        return Err(TokenizerError::LengthMismatch { key: KEY, found: array.len(), expected: count });
    }
    array.into_iter().enumerate().map(|(id, number)| TokenKind::from_number(id, number.into())).collect()
}

/// Every `tokenizer.ggml.*_token_id` must name a token, whether this project uses it or not: a file that names a token
/// it does not have is broken, and the key says where.
fn check_ids(file: &GgufFile, vocabulary: usize) -> Result<(), TokenizerError> {
    for (key, _) in file.metadata() {
        if key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id") {
            special_id(file, key, vocabulary)?;
        }
    }
    Ok(())
}

/// The id a key names, if the key is there.
pub(super) fn special_id(file: &GgufFile, key: &str, vocabulary: usize) -> Result<Option<u32>, TokenizerError> {
    let Some(found) = file.get::<u64>(key)? else { return Ok(None) };
    match u32::try_from(found) {
        Ok(id) if (id as usize) < vocabulary => Ok(Some(id)),
        _ => Err(TokenizerError::IdBeyondVocabulary { key: key.to_owned(), found, vocabulary }),
    }
}

/// The scores of a SentencePiece vocabulary.
pub(super) fn scores(file: &GgufFile, count: usize) -> Result<Vec<f32>, TokenizerError> {
    const KEY: &str = "tokenizer.ggml.scores";
    let array: MetadataArray = file.require(KEY)?;
    if array.len() != count {
        return Err(TokenizerError::LengthMismatch { key: KEY, found: array.len(), expected: count });
    }
    let scores: Vec<f32> = file.require(KEY)?;
    match scores.iter().position(|score| score.is_nan()) {
        Some(id) => Err(TokenizerError::BadScore { id, score: scores[id] }),
        None => Ok(scores),
    }
}

/// Every chat template in the file, the default one and the named ones.
pub(super) fn chat_templates(file: &GgufFile) -> Vec<&str> {
    file.metadata()
        .filter(|(key, _)| key.starts_with("tokenizer.chat_template"))
        .filter_map(|(_, value)| match value {
            MetadataValue::String(text) => Some(text),
            _ => None,
        })
        .collect()
}
