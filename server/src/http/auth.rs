//! API keys and tenants.
//!
//! Without keys everybody is the anonymous tenant 0. With keys, a request must carry one of them, and the key itself makes
//! the tenant: the border of sessions and cache reuse. A tenant is a keyed digest of its API key, so that it stays the
//! same over restarts and whatever the order of keys, and says nothing about the key. Keys are compared by their digests
//! in constant time; they are never logged and never given back.

use axum::http::{HeaderMap, header};
use plimsoll_runtime::engine::TenantId;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::wire::error::ServerError;

/// What domain a tenant's digest is of, beside others under the same key.
const TENANT_DOMAIN: &[u8] = b"tenant of an API key\0";

/// The key under which tenants are digested: the same key gives the same tenants.
#[derive(Clone, Copy)]
pub struct TenantKey(pub [u8; 32]);

impl TenantKey {
    /// The tenant of an API key, never the anonymous one.
    fn tenant(&self, key: &[u8]) -> TenantId {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(TENANT_DOMAIN).update(key);
        let mut number = [0; 8];
        number.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        TenantId(u64::from_le_bytes(number).max(1))
    }
}

/// The keys of a server.
pub struct ApiKeys {
    known: Vec<KnownKey>,
}

struct KnownKey {
    digest: [u8; 32],
    tenant: TenantId,
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} API keys", self.known.len())
    }
}

impl ApiKeys {
    /// The keys of the command line; empty ones are dropped.
    pub fn new<S: AsRef<str>>(keys: &[S], tenants: TenantKey) -> Self {
        let keys = keys.iter().map(|key| key.as_ref().as_bytes()).filter(|key| !key.is_empty());
        Self { known: keys.map(|key| KnownKey { digest: digest(key), tenant: tenants.tenant(key) }).collect() }
    }

    /// Whether a key is asked for at all.
    pub fn required(&self) -> bool {
        !self.known.is_empty()
    }

    /// Whose request it is: `Authorization: Bearer KEY`, or `x-api-key: KEY`.
    pub fn tenant(&self, headers: &HeaderMap) -> Result<TenantId, ServerError> {
        if !self.required() {
            return Ok(TenantId(0));
        }
        let Some(given) = given_key(headers) else { return Err(ServerError::MissingKey) };
        let given = digest(given);
        let mut found = 0u64;
        for known in &self.known {
            let equal: Choice = known.digest.ct_eq(&given);
            found.conditional_assign(&known.tenant.0, equal);
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

    const STORE: TenantKey = TenantKey([7; 32]);

    fn tenant(keys: &[&str], name: &'static str, value: &str) -> Result<u64, ServerError> {
        tenant_at(STORE, keys, name, value)
    }

    fn tenant_at(store: TenantKey, keys: &[&str], name: &'static str, value: &str) -> Result<u64, ServerError> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        ApiKeys::new(keys, store).tenant(&headers).map(|tenant| tenant.0)
    }

    #[test]
    fn a_key_makes_a_tenant_and_anything_else_is_refused() {
        let keys = ["alpha", "beta"];
        let (alpha, beta) = (STORE.tenant(b"alpha").0, STORE.tenant(b"beta").0);
        assert_eq!(tenant(&keys, "authorization", "Bearer alpha").unwrap(), alpha);
        assert_eq!(tenant(&keys, "authorization", "bearer beta").unwrap(), beta);
        assert_eq!(tenant(&keys, "x-api-key", "beta").unwrap(), beta);
        assert!(alpha != beta && alpha != 0 && beta != 0);
        for value in ["Bearer alphabet", "Bearer alph", "Bearer ", "Basic alpha", "alpha"] {
            assert!(tenant(&keys, "authorization", value).is_err(), "{value}");
        }
        assert!(matches!(ApiKeys::new(&keys, STORE).tenant(&HeaderMap::new()), Err(ServerError::MissingKey)));
    }

    #[test]
    fn a_tenant_stays_the_same_while_keys_come_and_go_and_differs_from_store_to_store() {
        let at = |store, keys: &[&str]| tenant_at(store, keys, "x-api-key", "beta").unwrap();
        assert_eq!(at(STORE, &["alpha", "beta"]), at(STORE, &["beta", "gamma"]));
        assert_ne!(at(STORE, &["beta"]), at(TenantKey([8; 32]), &["beta"]));
    }

    #[test]
    fn without_keys_everybody_is_the_anonymous_tenant() {
        assert_eq!(tenant(&[], "authorization", "Bearer anything").unwrap(), 0);
        assert_eq!(tenant(&[""], "authorization", "Bearer anything").unwrap(), 0);
    }
}
