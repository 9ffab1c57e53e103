//! Tokenizers built from a model file's metadata: text to token ids and back.
//!
//! Owns the choice of algorithm by `tokenizer.ggml.model` and `.pre`, and the rule of what is text and what is
//! structure. Merging is done by the `tokenizers` crate's BPE; cutting, byte spelling and special tokens are done here,
//! because a prompt of 100 000 tokens is encoded again on every turn and needs no offsets or alignments.
//! It never falls back to another algorithm: names that are not known are refused at load.
//!
//! **Text and structure.** Control tokens are structure. A user-defined token is structure if the chat template writes
//! it, or if the vocabulary is byte-level (`<tool_call>`, `<think>`); the others (runs of spaces, Gemma's HTML tags) are
//! ordinary text that happens to have a token. [`Tokenizer::encode_text`] produces no structure, whatever the text says:
//! `<|im_end|>` inside a user's file is seven ordinary tokens. Structure comes from templates
//! ([`Tokenizer::encode_prompt`]) and from raw prompts ([`Tokenizer::encode_with_specials`]).
//!
//! The naive twin is the `tokenizers` crate's own pipeline (`Split` and `ByteLevel` pre-tokenizers), in the tests.

mod byte_level;
mod error;
mod pre_tokenizer;
mod sentencepiece;
mod special_tokens;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::borrow::Cow;

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::tokenizer::Model;

use crate::gguf::{GgufFile, Strings};
use crate::template::RenderedPrompt;

pub use error::TokenizerError;
pub use special_tokens::{Segment, SpecialTokens};
pub use vocabulary::TokenKind;

use pre_tokenizer::{PreTokenizer, Rule};
use vocabulary::{Spelling, Vocabulary};

/// Control tokens that end a turn in one family or another. A model that emits one of them has finished, whichever its
/// `eos_token_id` names. (List: llama.cpp's end-of-generation tokens.)
const END_TOKENS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<EOT>",
    "<|EOT|>",
    "<end_of_utterance>",
];

/// Whether decoding shows control tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlTokens {
    /// They contribute nothing, as in output text.
    Hide,
    /// They are written as in the vocabulary, for people.
    Show,
}

/// A tokenizer of one model file.
#[derive(Debug)]
pub struct Tokenizer {
    algorithm: Algorithm,
    vocabulary: Vocabulary,
    /// Control tokens and user-defined tokens that are structure.
    structure: SpecialTokens,
    /// User-defined tokens that are ordinary text.
    literal: SpecialTokens,
    /// All of them.
    all: SpecialTokens,
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    end_tokens: Vec<u32>,
    add_bos: bool,
}

#[derive(Debug)]
enum Algorithm {
    ByteLevel { bpe: BPE, pre_tokenizer: PreTokenizer, missing: MissingBytes },
    SentencePiece { bpe: BPE, add_space_prefix: bool },
}

impl Tokenizer {
    /// Builds the tokenizer that a model file describes.
    ///
    /// # Errors
    /// [`TokenizerError::UnsupportedModel`] and [`TokenizerError::UnsupportedPreTokenizer`] for names that are not
    /// known; the others for lists that disagree, ids beyond the vocabulary, and texts that could not be encoded.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, TokenizerError> {
        let model: &str = file.require("tokenizer.ggml.model")?;
        let (algorithm, vocabulary, default_add_bos) = match model {
            "gpt2" => byte_level(file)?,
            "llama" => sentence_piece(file)?,
            found => {
                return Err(TokenizerError::UnsupportedModel {
                    found: found.to_owned(),
                    supported: "gpt2 (byte-level BPE), llama (SentencePiece BPE)",
                });
            }
        };
        let sets = Sets::new(file, &vocabulary, &algorithm);
        let named =
            |name: &str| vocabulary::special_id(file, &format!("tokenizer.ggml.{name}_token_id"), vocabulary.len());
        let (bos, eos, eot) = (named("bos")?, named("eos")?, named("eot")?);
        let known = END_TOKENS.iter().filter_map(|text| sets.control.id(text));
        let mut end_tokens: Vec<u32> = eos.into_iter().chain(eot).chain(named("eom")?).chain(known).collect();
        end_tokens.sort_unstable();
        end_tokens.dedup();
        let add_bos = file.get("tokenizer.ggml.add_bos_token")?.unwrap_or(default_add_bos);
        Ok(Self {
            algorithm,
            structure: sets.structure,
            literal: sets.literal,
            all: sets.all,
            bos,
            eos,
            eot,
            end_tokens,
            add_bos: add_bos && bos.is_some(),
            vocabulary,
        })
    }

    /// Tokens in the vocabulary; every id is below.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// Encodes text that is only text: nothing in it is read as structure, and no BOS is added.
    #[must_use]
    pub fn encode_text(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.push_text(text, &mut ids);
        ids
    }

    /// Encodes a raw prompt, in which control and user-defined tokens written out are those tokens. Unused tokens are
    /// never recognised. No BOS is added.
    #[must_use]
    pub fn encode_with_specials(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        for segment in self.structure.split(text) {
            match segment {
                Segment::Token(id) => ids.push(id),
                Segment::Text(text) => self.push_text(text, &mut ids),
            }
        }
        ids
    }

    /// Encodes what a chat template rendered: the template's own special tokens are tokens, those in messages are text.
    /// BOS is added where the model wants it and the template did not write it.
    #[must_use]
    pub fn encode_prompt(&self, prompt: &RenderedPrompt) -> Vec<u32> {
        self.with_bos(self.encode_escaped(prompt.escaped()))
    }

    /// Encodes a stretch of a rendered prompt in its escaped form ([`RenderedPrompt::escaped`]); nothing is put in front.
    /// The stretch begins at the start of the prompt or with a special token.
    #[must_use]
    pub fn encode_escaped(&self, escaped: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(escaped.len() / 3);
        for segment in self.structure.split(escaped) {
            match segment {
                Segment::Token(id) => ids.push(id),
                Segment::Text(text) => self.push_text(&crate::template::unescape(text), &mut ids),
            }
        }
        ids
    }

    /// The ids with BOS in front, where the model wants it and it is not there.
    #[must_use]
    pub fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        match self.bos {
            Some(bos) if self.add_bos && ids.first() != Some(&bos) => {
                ids.insert(0, bos);
                ids
            }
            _ => ids,
        }
    }

    /// Encodes a stretch without structure that stands at the start of the text or after a token of structure.
    /// SentencePiece puts its own space before such a stretch.
    fn push_text(&self, text: &str, ids: &mut Vec<u32>) {
        let prefixed;
        let text = if self.drops_first_space() && !text.is_empty() {
            prefixed = format!(" {text}");
            &prefixed
        } else {
            text
        };
        for segment in self.literal.split(text) {
            match segment {
                Segment::Token(id) => ids.push(id),
                Segment::Text(text) => self.merge(text, ids),
            }
        }
    }

    fn merge(&self, text: &str, ids: &mut Vec<u32>) {
        match &self.algorithm {
            Algorithm::ByteLevel { bpe, pre_tokenizer, missing } => {
                let text = &*missing.replace(text);
                let mut spelled = String::new();
                for piece in pre_tokenizer.pieces(text) {
                    spelled.clear();
                    byte_level::encode(&text[piece], &mut spelled);
                    push_merged(bpe, &spelled, ids);
                }
            }
            Algorithm::SentencePiece { bpe, .. } => {
                let mut spelled = String::with_capacity(text.len());
                spelled.extend(text.chars().map(|c| if c == ' ' { sentencepiece::SPACE } else { c }));
                push_merged(bpe, &spelled, ids);
            }
        }
    }

    /// The bytes a token contributes to output text: none for control, unknown and unused tokens; a part of a character
    /// is possible. `None` for ids beyond the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocabulary.token_bytes(id)
    }

    /// A token as people want to see it: its text, or its name if it is no text. Broken characters appear as U+FFFD.
    pub fn token_piece(&self, id: u32) -> Option<Cow<'_, str>> {
        if let Some(name) = self.vocabulary.name(id) {
            return Some(Cow::Borrowed(name));
        }
        self.vocabulary.token_bytes(id).map(String::from_utf8_lossy)
    }

    /// What a token is; `None` for ids beyond the vocabulary.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.vocabulary.kind(id)
    }

    /// Whether a token is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.kind(id) == Some(TokenKind::Control)
    }

    /// The id of a control or user-defined token by its written form.
    pub fn special_id(&self, text: &str) -> Option<u32> {
        self.all.id(text)
    }

    /// The strings that are structure in a prompt, and therefore must be escaped in messages.
    pub fn structure(&self) -> &SpecialTokens {
        &self.structure
    }

    /// The beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The end-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The end-of-turn token, where the file names one beside EOS.
    pub fn eot(&self) -> Option<u32> {
        self.eot
    }

    /// All tokens that end a reply, sorted: EOS, end of turn, and the control tokens that end a turn in a known family.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Whether prompts start with BOS.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether the first space of a decoded text is the tokenizer's own and must be dropped (SentencePiece with a space
    /// prefix). It holds for a whole text, not for a reply that continues a prompt in mid-sentence.
    pub fn drops_first_space(&self) -> bool {
        matches!(self.algorithm, Algorithm::SentencePiece { add_space_prefix: true, .. })
    }

    /// The text of a whole sequence of tokens. Bytes that are no UTF-8 become U+FFFD, ids beyond the vocabulary nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32], control: ControlTokens) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        // The space that encoding put before each stretch of text, so that decoding undoes it.
        let mut after_special = self.drops_first_space();
        for id in ids {
            match self.kind(*id) {
                Some(TokenKind::Control | TokenKind::Unknown | TokenKind::Unused) => {
                    if control == ControlTokens::Show {
                        bytes.extend(self.vocabulary.name(*id).unwrap_or_default().as_bytes());
                    }
                    after_special = self.drops_first_space();
                }
                Some(_) if self.vocabulary.name(*id).is_some_and(|name| self.structure.id(name) == Some(*id)) => {
                    bytes.extend(self.vocabulary.token_bytes(*id).unwrap_or_default());
                    after_special = self.drops_first_space();
                }
                Some(_) => {
                    let mut token = self.vocabulary.token_bytes(*id).unwrap_or_default();
                    if std::mem::take(&mut after_special) {
                        token = token.strip_prefix(b" ").unwrap_or(token);
                    }
                    bytes.extend(token);
                }
                None => {}
            }
        }
        String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }
}

fn push_merged(bpe: &BPE, piece: &str, ids: &mut Vec<u32>) {
    let tokens = bpe
        .tokenize(piece)
        .expect("load has checked that every byte has a token, or that there is one for unknown text");
    ids.extend(tokens.iter().map(|token| token.id));
}

/// The sets of tokens that are matched as strings.
struct Sets {
    control: SpecialTokens,
    structure: SpecialTokens,
    literal: SpecialTokens,
    all: SpecialTokens,
}

impl Sets {
    fn new(file: &GgufFile, vocabulary: &Vocabulary, algorithm: &Algorithm) -> Self {
        let templates = vocabulary::chat_templates(file);
        // A string of one character cannot be escaped by splitting it, and no template needs it to be.
        let is_structure = |text: &str| {
            let marks = text.chars().nth(1).is_some() && !text.trim().is_empty();
            let written = templates.iter().any(|template| template.contains(text));
            marks && (written || matches!(algorithm, Algorithm::ByteLevel { .. }))
        };
        let of_kind = |wanted: TokenKind| {
            let ids = vocabulary.kinds().iter().zip(0u32..).filter(move |(kind, _)| **kind == wanted);
            ids.filter_map(|(_, id)| Some((vocabulary.name(id)?, id)))
        };
        let control = || of_kind(TokenKind::Control);
        let (structural, literal): (Vec<_>, Vec<_>) =
            of_kind(TokenKind::UserDefined).partition(|(text, _)| is_structure(text));
        let spelled: Vec<(String, u32)> = literal
            .iter()
            .filter(|_| matches!(algorithm, Algorithm::SentencePiece { .. }))
            .map(|(text, id)| (text.replace(sentencepiece::SPACE, " "), *id))
            .collect();
        // SentencePiece writes spaces as ▁ in the vocabulary; the text that is searched has spaces.
        let literal = || literal.iter().copied().chain(spelled.iter().map(|(text, id)| (text.as_str(), *id)));
        Self {
            control: SpecialTokens::new(control()),
            structure: SpecialTokens::new(control().chain(structural.iter().copied())),
            literal: SpecialTokens::new(literal()),
            all: SpecialTokens::new(literal().chain(structural.iter().copied()).chain(control())),
        }
    }
}

/// Byte-level BPE: pieces, merges, and a pre-tokenizer by name.
fn byte_level(file: &GgufFile) -> Result<(Algorithm, Vocabulary, bool), TokenizerError> {
    let rule = Rule::named(file.get("tokenizer.ggml.pre")?)?;
    let vocabulary = Vocabulary::from_gguf(file, Spelling::ByteLevel)?;
    let pieces: Strings = file.require("tokenizer.ggml.tokens")?;
    let all: Vocab = pieces.clone().map(str::to_owned).zip(0u32..).collect();
    let mut normal: Vocab = pieces
        .zip(0u32..)
        .filter(|(_, id)| vocabulary.kind(*id) == Some(TokenKind::Normal))
        .map(|(piece, id)| (piece.to_owned(), id))
        .collect();
    let mut merges = Merges::new();
    for (index, merge) in file.require::<Strings>("tokenizer.ggml.merges")?.enumerate() {
        let (left, right) = split_merge(index, merge)?;
        let union = format!("{left}{right}");
        let mut mergeable = true;
        for piece in [left, right, &union] {
            let Some(id) = all.get(piece) else {
                let (merge, piece) = (merge.to_owned(), piece.to_owned());
                return Err(TokenizerError::MergeBeyondVocabulary { index, merge, piece });
            };
            match vocabulary.kind(*id) {
                Some(TokenKind::Normal) => {}
                // Some writers mark pieces that merges make as user-defined; they stay reachable.
                Some(TokenKind::UserDefined) => {
                    normal.insert(piece.to_owned(), *id);
                }
                // Text must never merge into structure.
                _ => mergeable = false,
            }
        }
        if mergeable {
            merges.push((left.to_owned(), right.to_owned()));
        }
    }
    let missing = MissingBytes::of(&normal)?;
    let bpe = BPE::builder().vocab_and_merges(normal, merges).ignore_merges(rule.ignore_merges).build();
    let bpe = bpe.map_err(|error| TokenizerError::Library { reason: error.to_string() })?;
    let algorithm = Algorithm::ByteLevel { bpe, pre_tokenizer: PreTokenizer::new(rule), missing };
    Ok((algorithm, vocabulary, rule.add_bos))
}

/// Bytes without a token. Vocabularies that were trained without the full alphabet lack some (SmolLM2: six control bytes
/// and the lead bytes of unused planes). Characters that need them are read as U+FFFD, so that the model sees that
/// something was there; llama.cpp drops them, the original library reads them as `<|endoftext|>`.
#[derive(Debug)]
struct MissingBytes {
    /// One bit for each byte.
    bits: [u64; 4],
}

impl MissingBytes {
    fn of(pieces: &Vocab) -> Result<Self, TokenizerError> {
        let mut missing = Self { bits: [0; 4] };
        for byte in 0..=255u8 {
            let spelled = byte_level::character(byte);
            if !pieces.contains_key(spelled.encode_utf8(&mut [0; 4]) as &str) {
                missing.bits[usize::from(byte / 64)] |= 1 << (byte % 64);
            }
        }
        match missing.first_in(char::REPLACEMENT_CHARACTER) {
            Some(byte) => Err(TokenizerError::ByteMissing { byte }),
            None => Ok(missing),
        }
    }

    fn contains(&self, byte: u8) -> bool {
        self.bits[usize::from(byte / 64)] >> (byte % 64) & 1 == 1
    }

    /// The first byte of a character that is missing.
    fn first_in(&self, c: char) -> Option<u8> {
        c.encode_utf8(&mut [0; 4]).bytes().find(|byte| self.contains(*byte))
    }

    fn replace<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.bits == [0; 4] || !text.bytes().any(|byte| self.contains(byte)) {
            return Cow::Borrowed(text);
        }
        let known = |c: char| if self.first_in(c).is_some() { char::REPLACEMENT_CHARACTER } else { c };
        Cow::Owned(text.chars().map(known).collect())
    }
}

/// A merge is two pieces with a space between them; the first may itself begin with a space character in odd files, so
/// the search starts after the first character.
fn split_merge(index: usize, merge: &str) -> Result<(&str, &str), TokenizerError> {
    let malformed = || TokenizerError::MalformedMerge { index, merge: merge.to_owned() };
    let first = merge.chars().next().ok_or_else(malformed)?.len_utf8();
    let at = first + merge[first..].find(' ').ok_or_else(malformed)?;
    let (left, right) = (&merge[..at], &merge[at + 1..]);
    if right.is_empty() { Err(malformed()) } else { Ok((left, right)) }
}

/// SentencePiece BPE: pieces with scores, bytes for what has no piece.
fn sentence_piece(file: &GgufFile) -> Result<(Algorithm, Vocabulary, bool), TokenizerError> {
    let vocabulary = Vocabulary::from_gguf(file, Spelling::SentencePiece)?;
    let scores = vocabulary::scores(file, vocabulary.len())?;
    let pieces: Strings = file.require("tokenizer.ggml.tokens")?;
    let normal = pieces.clone().zip(0u32..).filter(|(_, id)| vocabulary.kind(*id) == Some(TokenKind::Normal));
    let merges = sentencepiece::merges(normal.clone().map(|(piece, id)| (id, piece, scores[id as usize])));
    let mut vocab: Vocab = normal.map(|(piece, id)| (piece.to_owned(), id)).collect();

    for (piece, id) in pieces.clone().zip(0u32..) {
        if vocabulary.kind(id) == Some(TokenKind::Byte) {
            let byte = sentencepiece::byte_of(piece);
            // The library looks bytes up under this spelling.
            vocab.insert(byte.map_or_else(|| piece.to_owned(), sentencepiece::byte_piece), id);
        }
    }
    let mut builder = BPE::builder().fuse_unk(true).byte_fallback(true);
    // Counted by value: a file may list one byte twice and lack another.
    if (0..=255).any(|byte| !vocab.contains_key(&sentencepiece::byte_piece(byte))) {
        let key = "tokenizer.ggml.unknown_token_id";
        let id = vocabulary::special_id(file, key, vocabulary.len())?.ok_or(TokenizerError::NoFallback)?;
        let unknown = pieces.clone().nth(id as usize).expect("the id lies in the vocabulary").to_owned();
        vocab.insert(unknown.clone(), id);
        builder = builder.unk_token(unknown);
    }
    let bpe = builder.vocab_and_merges(vocab, merges).build();
    let bpe = bpe.map_err(|error| TokenizerError::Library { reason: error.to_string() })?;
    let add_space_prefix = file.get("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    Ok((Algorithm::SentencePiece { bpe, add_space_prefix }, vocabulary, true))
}
