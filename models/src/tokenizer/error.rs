//! Why a tokenizer could not be built from a model file.

use crate::gguf::GgufError;

/// Why a tokenizer could not be built; the numbers and names are the file's.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TokenizerError {
    #[error(transparent)]
    Gguf(#[from] GgufError),

    #[error("tokenizer.ggml.model {found:?} is not supported; supported are {supported}")]
    UnsupportedModel { found: String, supported: &'static str },

    #[error("tokenizer.ggml.pre {} is not supported; supported are {supported}", .found.as_ref().map_or("(absent)".to_owned(), |f| format!("{f:?}")))]
    UnsupportedPreTokenizer { found: Option<String>, supported: String },

    #[error("{key} has {found} entries, but tokenizer.ggml.tokens has {expected}")]
    LengthMismatch { key: &'static str, found: usize, expected: usize },

    #[error("tokenizer.ggml.tokens has {found} entries; 1 to {limit} are possible")]
    VocabularySize { found: usize, limit: usize },

    #[error("token {id} of tokenizer.ggml.tokens has {found} bytes; at most {limit} are possible")]
    PieceTooLong { id: usize, found: usize, limit: usize },

    #[error("tokenizer.ggml.token_type says {found} for token {id}; the types are 1 to 6")]
    UnknownTokenType { id: usize, found: i64 },

    #[error("{key} is {found}, but the vocabulary has {vocabulary} tokens (0 to {})", vocabulary - 1)]
    IdBeyondVocabulary { key: String, found: u64, vocabulary: usize },

    #[error("merge {index} ({merge:?}) of tokenizer.ggml.merges is not two pieces with a space between them")]
    MalformedMerge { index: usize, merge: String },

    #[error(
        "merge {index} ({merge:?}) of tokenizer.ggml.merges needs {piece:?}, which is not in tokenizer.ggml.tokens"
    )]
    MergeBeyondVocabulary { index: usize, merge: String, piece: String },

    #[error(
        "the vocabulary has no token for the byte {byte:#04x}, which U+FFFD needs, so not every text can be encoded"
    )]
    ByteMissing { byte: u8 },

    #[error(
        "the vocabulary has no byte tokens and no tokenizer.ggml.unknown_token_id, so not every text can be encoded"
    )]
    NoFallback,

    #[error("score {score} of token {id} in tokenizer.ggml.scores is not a number")]
    BadScore { id: usize, score: f32 },

    #[error("the tokenizer library refused the vocabulary: {reason}")]
    Library { reason: String },
}
