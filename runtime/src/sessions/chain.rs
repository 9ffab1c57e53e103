//! The chain of digests by which a conversation is recognised, whoever sends it again.
//!
//! Each turn extends the chain: a keyed digest of the end before it, the role, the trimmed text, the names and the
//! canonical arguments of calls, and the results of tools. Reasoning, call ids and the leading system messages take no
//! part, because clients change or drop them between turns. A second chain leaves out what tools answered: it
//! recognises histories whose old results were pruned.
//!
//! Owns the key and the canonical form of a turn. Never keeps a message.

use std::fmt;

use plimsoll_models::chat::{Message, Role};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::engine::TenantId;

/// What a session's id begins with.
const SESSION_PREFIX: &str = "ses_";

/// A session's name on the wire: `ses_` and 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(String);

impl SessionId {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(format!("{SESSION_PREFIX}{}", hexadecimal(&bytes)))
    }

    /// An id nobody had before.
    pub(super) fn random() -> Self {
        Self::from_bytes(random_bytes())
    }

    /// An id as it stands in the store.
    pub(super) fn from_stored(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The digest of a conversation up to some turn. In JSON: 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainEnd(pub(super) [u8; 32]);

impl fmt::Debug for ChainEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChainEnd({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

impl Serialize for ChainEnd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hexadecimal(&self.0))
    }
}

impl<'de> Deserialize<'de> for ChainEnd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut bytes = [0; 32];
        let pairs = text.as_bytes().chunks_exact(2);
        if text.len() != 64 {
            return Err(de::Error::custom("a chain end has 64 hexadecimal digits"));
        }
        for (byte, pair) in bytes.iter_mut().zip(pairs) {
            let pair = std::str::from_utf8(pair).map_err(de::Error::custom)?;
            *byte = u8::from_str_radix(pair, 16).map_err(de::Error::custom)?;
        }
        Ok(Self(bytes))
    }
}

/// Both digests of a conversation up to some turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Link {
    /// Of everything that takes part.
    pub end: ChainEnd,
    /// Without the contents of tool results.
    pub pruned: ChainEnd,
}

/// The secret of a store: without it nobody can compute, guess or meet a digest.
#[derive(Clone, Copy)]
pub struct ChainKey(pub(super) [u8; 32]);

impl fmt::Debug for ChainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChainKey(secret)")
    }
}

impl ChainKey {
    /// A key nobody had before.
    pub(super) fn random() -> Self {
        Self(random_bytes())
    }

    /// The links of a conversation: one per turn, turns being the messages after the leading system ones.
    pub fn links(&self, tenant: TenantId, model: &str, messages: &[Message]) -> Vec<Link> {
        let start = self.start(tenant, model);
        let mut link = Link { end: start, pruned: start };
        messages[head_len(messages)..]
            .iter()
            .map(|message| {
                link = self.next(link, message);
                link
            })
            .collect()
    }

    /// The id of the session that its client calls `name`: the same as long as the store lives.
    pub(super) fn named_session(&self, tenant: TenantId, model: &str, name: &str) -> SessionId {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"name");
        hasher.update(&tenant.0.to_le_bytes());
        update_text(&mut hasher, model);
        update_text(&mut hasher, name);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        SessionId::from_bytes(bytes)
    }

    fn start(&self, tenant: TenantId, model: &str) -> ChainEnd {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"chain");
        hasher.update(&tenant.0.to_le_bytes());
        update_text(&mut hasher, model);
        ChainEnd(*hasher.finalize().as_bytes())
    }

    fn next(&self, before: Link, message: &Message) -> Link {
        let turn = CanonicalTurn::of(message);
        Link {
            end: self.extend(before.end, &turn, Results::Kept),
            pruned: self.extend(before.pruned, &turn, Results::LeftOut),
        }
    }

    fn extend(&self, before: ChainEnd, turn: &CanonicalTurn<'_>, results: Results) -> ChainEnd {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&before.0);
        update_text(&mut hasher, turn.role.as_str());
        update_text(&mut hasher, turn.text(results));
        hasher.update(&(turn.calls.len() as u64).to_le_bytes());
        for (name, arguments) in &turn.calls {
            update_text(&mut hasher, name);
            update_text(&mut hasher, arguments);
        }
        ChainEnd(*hasher.finalize().as_bytes())
    }
}

/// Whether what tools answered takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Results {
    Kept,
    LeftOut,
}

/// A turn reduced to what takes part in the chain.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CanonicalTurn<'a> {
    role: Role,
    text: &'a str,
    calls: Vec<(&'a str, String)>,
}

impl<'a> CanonicalTurn<'a> {
    pub(super) fn of(message: &'a Message) -> Self {
        let calls =
            message.tool_calls.iter().map(|call| (call.name.as_str(), canonical_arguments(&call.arguments))).collect();
        Self { role: message.role, text: message.content.trim(), calls }
    }

    fn text(&self, results: Results) -> &str {
        if self.role == Role::Tool && results == Results::LeftOut { "" } else { self.text }
    }
}

/// Whether two messages are the same turn. What digests promise is confirmed with this before it is used.
pub(super) fn same_turn(one: &Message, other: &Message, results: Results) -> bool {
    let (one, other) = (CanonicalTurn::of(one), CanonicalTurn::of(other));
    one.role == other.role && one.text(results) == other.text(results) && one.calls == other.calls
}

/// The number of leading system messages.
pub fn head_len(messages: &[Message]) -> usize {
    messages.iter().take_while(|message| message.role == Role::System).count()
}

/// Lengths go in front of texts, so that no two lists of texts are the same bytes.
fn update_text(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

/// Arguments that differ in white space or in the order of keys alone are the same; what does not parse is itself.
fn canonical_arguments(text: &str) -> String {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(mut value) => {
            value.sort_all_objects();
            value.to_string()
        }
        Err(_) => text.trim().to_owned(),
    }
}

pub(super) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system provides random numbers");
    bytes
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).expect("half a byte is a hexadecimal digit"));
        }
    }
    text
}
