//! Pre-tokenizers: the named rules by which text is cut before byte-pair merges.
//!
//! Owns the table of names in `tokenizer.ggml.pre` and what each implies. A name that is not in the table is refused:
//! a wrong cut gives plausible, silently worse output. The expressions are those of the models' own `tokenizer.json`
//! files; llama.cpp's `llama-vocab.cpp` lists them with the same names.

use std::ops::Range;

use tokenizers::utils::SysRegex;

use super::error::TokenizerError;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What a name in `tokenizer.ggml.pre` stands for.
pub(super) struct Rule {
    names: &'static [&'static str],
    /// Applied one after the other, each within the pieces of the one before.
    pub(super) patterns: &'static [&'static str],
    /// A piece that is a token is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Whether BOS is prepended when `tokenizer.ggml.add_bos_token` is absent.
    pub(super) add_bos: bool,
}

const RULES: &[Rule] = &[
    Rule { names: &["gpt-2"], patterns: &[GPT2], ignore_merges: false, add_bos: false },
    Rule { names: &["smollm"], patterns: &[r"\p{N}", GPT2], ignore_merges: false, add_bos: false },
    Rule { names: &["qwen2", "deepseek-r1-qwen"], patterns: &[QWEN2], ignore_merges: false, add_bos: false },
    Rule { names: &["qwen35"], patterns: &[QWEN35], ignore_merges: false, add_bos: false },
    Rule { names: &["llama-bpe", "llama3", "llama-v3"], patterns: &[LLAMA3], ignore_merges: true, add_bos: true },
    Rule { names: &["tekken"], patterns: &[TEKKEN], ignore_merges: true, add_bos: true },
];

impl Rule {
    /// The rule of this name.
    pub(super) fn named(name: Option<&str>) -> Result<&'static Rule, TokenizerError> {
        RULES.iter().find(|rule| name.is_some_and(|name| rule.names.contains(&name))).ok_or_else(|| {
            TokenizerError::UnsupportedPreTokenizer {
                found: name.map(str::to_owned),
                supported: RULES.iter().flat_map(|rule| rule.names).copied().collect::<Vec<_>>().join(", "),
            }
        })
    }
}

/// Cuts text into the pieces within which merges happen.
pub(super) struct PreTokenizer {
    expressions: Vec<SysRegex>,
}

impl std::fmt::Debug for PreTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PreTokenizer").field("expressions", &self.expressions.len()).finish()
    }
}

impl PreTokenizer {
    pub(super) fn new(rule: &Rule) -> Self {
        let expression = |pattern| SysRegex::new(pattern).expect("the expressions of the table are well formed");
        Self { expressions: rule.patterns.iter().map(|pattern| expression(pattern)).collect() }
    }

    /// The pieces of a text in order; together they are the text.
    ///
    /// What an expression does not match is a piece by itself. That is also how the library behaves when its step limit
    /// ends a search early, which takes a run of about a million spaces.
    pub(super) fn pieces(&self, text: &str) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        let mut outer = Vec::new();
        push(&mut outer, 0..text.len());
        for expression in &self.expressions {
            for range in &outer {
                let mut end = range.start;
                for (from, to) in expression.find_iter(&text[range.clone()]) {
                    let (from, to) = (range.start + from, range.start + to);
                    push(&mut pieces, end..from);
                    push(&mut pieces, from..to);
                    end = to;
                }
                push(&mut pieces, end..range.end);
            }
            std::mem::swap(&mut pieces, &mut outer);
            pieces.clear();
        }
        outer
    }
}

fn push(pieces: &mut Vec<Range<usize>>, piece: Range<usize>) {
    if !piece.is_empty() {
        pieces.push(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let pre = PreTokenizer::new(Rule::named(Some(name)).unwrap());
        pre.pieces(text).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn each_rule_cuts_numbers_letters_and_space_in_its_own_way() {
        let text = "It's 1234  CamelCase\n\n  x";
        assert_eq!(cut("gpt-2", text), ["It", "'s", " 1234", " ", " CamelCase", "\n\n ", " x"]);
        assert_eq!(cut("smollm", text), ["It", "'s", " ", "1", "2", "3", "4", " ", " CamelCase", "\n\n ", " x"]);
        assert_eq!(cut("qwen2", text), ["It", "'s", " ", "1", "2", "3", "4", " ", " CamelCase", "\n\n", " ", " x"]);
        assert_eq!(cut("llama-bpe", text), ["It", "'s", " ", "123", "4", " ", " CamelCase", "\n\n", " ", " x"]);
        assert_eq!(
            cut("tekken", text),
            ["It", "'s", " ", "1", "2", "3", "4", " ", " Camel", "Case", "\n\n", " ", " x"]
        );
    }

    #[test]
    fn qwen35_keeps_combining_marks_with_their_letters() {
        assert_eq!(cut("qwen35", "ne\u{301}e"), ["ne\u{301}e"]);
        assert_eq!(cut("qwen2", "ne\u{301}e"), ["ne", "\u{301}e"]);
    }

    #[test]
    fn an_unknown_name_is_refused_by_name() {
        let message = |name| Rule::named(name).err().expect("refused").to_string();
        assert!(
            message(Some("gpt-17")).starts_with("tokenizer.ggml.pre \"gpt-17\" is not supported; supported are gpt-2")
        );
        assert!(message(None).starts_with("tokenizer.ggml.pre (absent) is not supported"));
    }

    #[test]
    fn a_run_of_two_million_spaces_loses_nothing() {
        let text = format!("a{}b", " ".repeat(2_000_000));
        for name in ["smollm", "qwen2"] {
            let pre = PreTokenizer::new(Rule::named(Some(name)).unwrap());
            let mut end = 0;
            for piece in pre.pieces(&text) {
                assert_eq!(piece.start, end);
                end = piece.end;
            }
            assert_eq!(end, text.len());
        }
    }
}
