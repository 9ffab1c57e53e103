//! API keys and tenants.
//!
//! Without keys everybody is the anonymous tenant 0. With keys, a request must carry one of them, and the key's place
//! in the list makes the tenant: the border of sessions and cache reuse. Keys are compared by their digests in
//! constant time; they are never logged and never given back.

use axum::http::{HeaderMap, header};
use plimsoll_runtime::engine::TenantId;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::wire::error::ServerError;

/// The keys of a server.
pub struct ApiKeys {
    digests: Vec<[u8; 32]>,
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} API keys", self.digests.len())
    }
}

impl ApiKeys {
    /// Keys in the order of the command line; empty keys are dropped.
    pub fn new<S: AsRef<str>>(keys: &[S]) -> Self {
        let keys = keys.iter().map(AsRef::as_ref).filter(|key: &&str| !key.is_empty());
        Self { digests: keys.map(|key| digest(key.as_bytes())).collect() }
    }

    /// Whether a key is asked for at all.
    pub fn required(&self) -> bool {
        !self.digests.is_empty()
    }

    /// Whose request it is: `Authorization: Bearer KEY`, or `x-api-key: KEY`.
    pub fn tenant(&self, headers: &HeaderMap) -> Result<TenantId, ServerError> {
        if !self.required() {
            return Ok(TenantId(0));
        }
        let Some(given) = given_key(headers) else { return Err(ServerError::MissingKey) };
        let given = digest(given);
        let mut found = 0u64;
        for (at, known) in self.digests.iter().enumerate() {
            let equal: Choice = known.ct_eq(&given);
            found.conditional_assign(&(at as u64 + 1), equal);
        }
        if found == 0 { Err(ServerError::WrongKey) } else { Ok(TenantId(found)) }
    }
}

fn given_key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes())).filter(|key| !key.is_empty())
}

fn digest(key: &[u8]) -> [u8; 32] {
    *blake3::hash(key).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(keys: &[&str], name: &'static str, value: &str) -> Result<u64, ServerError> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        ApiKeys::new(keys).tenant(&headers).map(|tenant| tenant.0)
    }

    #[test]
    fn a_key_makes_a_tenant_and_anything_else_is_refused() {
        let keys = ["alpha", "beta"];
        assert_eq!(tenant(&keys, "authorization", "Bearer alpha").unwrap(), 1);
        assert_eq!(tenant(&keys, "authorization", "bearer beta").unwrap(), 2);
        assert_eq!(tenant(&keys, "x-api-key", "beta").unwrap(), 2);
        for value in ["Bearer alphabet", "Bearer alph", "Bearer ", "Basic alpha", "alpha"] {
            assert!(tenant(&keys, "authorization", value).is_err(), "{value}");
        }
        assert!(matches!(ApiKeys::new(&keys).tenant(&HeaderMap::new()), Err(ServerError::MissingKey)));
    }

    #[test]
    fn without_keys_everybody_is_the_anonymous_tenant() {
        assert_eq!(tenant(&[], "authorization", "Bearer anything").unwrap(), 0);
        assert_eq!(tenant(&[""], "authorization", "Bearer anything").unwrap(), 0);
    }
}
