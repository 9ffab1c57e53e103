//! The alphabet of byte-level BPE: each byte is written as one printable character.
//!
//! Owns the table in both directions. Source: GPT-2's `encoder.py` (`bytes_to_unicode`): printable Latin-1 bytes stand
//! for themselves, the other 68 are numbered from U+0100 on.

use std::sync::LazyLock;

/// The characters stand in U+0021..U+0143.
const CHARACTERS: usize = 0x144;

static TABLES: LazyLock<([char; 256], [Option<u8>; CHARACTERS])> = LazyLock::new(|| {
    let mut characters = ['\0'; 256];
    let mut bytes = [None; CHARACTERS];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        let character = match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).expect("U+0100..U+0143 are characters")
            }
        };
        characters[usize::from(byte)] = character;
        bytes[character as usize] = Some(byte);
    }
    (characters, bytes)
});

/// The character that stands for a byte.
pub(super) fn character(byte: u8) -> char {
    TABLES.0[usize::from(byte)]
}

/// The byte a character stands for.
pub(super) fn byte(character: char) -> Option<u8> {
    TABLES.1.get(character as usize).copied().flatten()
}

/// Text with every byte written as its character.
pub(super) fn encode(text: &str, out: &mut String) {
    out.extend(text.bytes().map(character));
}

/// The bytes a piece stands for; characters outside the alphabet (in tokens that were added as raw text) stand for
/// their own UTF-8.
pub(super) fn decode(piece: &str, out: &mut Vec<u8>) {
    for c in piece.chars() {
        match byte(c) {
            Some(byte) => out.push(byte),
            None => out.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own_and_comes_back() {
        let mut seen = std::collections::HashSet::new();
        for b in 0..=255u8 {
            assert!(seen.insert(character(b)));
            assert_eq!(byte(character(b)), Some(b));
        }
        assert_eq!((character(b' '), character(b'\n'), character(0xad)), ('Ġ', 'Ċ', 'Ń'));
        assert_eq!(seen, tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect());
    }
}
