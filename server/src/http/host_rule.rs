//! Which `Host` and `Origin` a request may carry.
//!
//! A web page can make a browser send requests to a server on the same machine (cross-site requests), and can point
//! its own name at a loopback address to read the answers (DNS rebinding). Both carry a foreign `Host` or `Origin`,
//! and both are refused here. Programs that are not browsers send no `Origin` and the host they connect to.
//!
//! Owns the list of allowed hosts. Never looks at ports: another port of an allowed host is no other site.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};

use crate::wire::error::ServerError;

/// The allowed hosts.
#[derive(Clone, Debug)]
pub struct HostRule {
    /// Lower-case names and addresses, addresses without brackets.
    names: Vec<String>,
    /// A server bound to every address of the machine does not know its addresses; an address literal cannot be
    /// rebound, so any is allowed.
    any_address: bool,
}

impl HostRule {
    /// Loopback names, the bound address, and whatever else the operator allows.
    pub fn new(bound: IpAddr, extra: &[String]) -> Self {
        let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        if !bound.is_unspecified() {
            names.push(bound.to_string());
        }
        names.extend(extra.iter().map(|host| bare(host).to_ascii_lowercase()));
        Self { names, any_address: bound.is_unspecified() }
    }

    /// Checks the request's target, `Host` and `Origin`.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ServerError> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => String::from_utf8_lossy(host.as_bytes()).into_owned(),
            (None, _) => uri.authority().map(|a| a.as_str().to_owned()).unwrap_or_default(),
            (Some(_), Some(_)) => return Err(ServerError::ForeignHost { found: "two Host headers".into() }),
        };
        if !self.allows(&host) {
            return Err(ServerError::ForeignHost { found: host });
        }
        if let Some(authority) = uri.authority()
            && !self.allows(authority.as_str())
        {
            return Err(ServerError::ForeignHost { found: authority.as_str().to_owned() });
        }
        for origin in headers.get_all(header::ORIGIN) {
            let origin = String::from_utf8_lossy(origin.as_bytes());
            let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            if !host.is_some_and(|host| self.allows(host)) {
                return Err(ServerError::ForeignOrigin { found: origin.into_owned() });
            }
        }
        Ok(())
    }

    fn allows(&self, authority: &str) -> bool {
        let host = bare(authority);
        if host.is_empty() {
            return false;
        }
        if self.any_address && host.parse::<IpAddr>().is_ok() {
            return true;
        }
        self.names.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// The host of an authority: without port, brackets and the root's dot. Empty when it is not one.
fn bare(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return match rest.split_once(']') {
            Some((address, tail)) if tail.is_empty() || is_port(tail) => address,
            _ => "",
        };
    }
    // An address of IP version 6 without brackets has several colons and no port.
    if authority.parse::<IpAddr>().is_ok() {
        return authority;
    }
    let host = match authority.split_once(':') {
        Some((host, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => host,
        Some(_) => "",
        None => authority,
    };
    host.strip_suffix('.').unwrap_or(host)
}

fn is_port(tail: &str) -> bool {
    tail.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: &HostRule, host: &str, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        rule.check(&Uri::from_static("/v1/models"), &headers).is_ok()
    }

    #[test]
    fn loopback_names_are_served_and_foreign_ones_are_not() {
        let rule = HostRule::new("127.0.0.1".parse().unwrap(), &["Box.lan".into()]);
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "localhost.", "box.lan:80"] {
            assert!(check(&rule, host, None), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "10.0.0.1",
            "",
            "localhost:80:80",
            "[::1",
            "localhost@evil.example",
            "[::1]evil",
            "0.0.0.0",
        ] {
            assert!(!check(&rule, host, None), "{host}");
        }
    }

    #[test]
    fn an_origin_must_be_an_allowed_host_too() {
        let rule = HostRule::new("127.0.0.1".parse().unwrap(), &[]);
        for origin in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:8080"] {
            assert!(check(&rule, "localhost", Some(origin)), "{origin}");
        }
        for origin in
            ["http://evil.example", "null", "file://", "http://localhost.evil.example", "http://localhost/evil.example"]
        {
            assert!(!check(&rule, "localhost", Some(origin)), "{origin}");
        }
    }

    #[test]
    fn a_server_on_every_address_accepts_address_literals_and_no_names() {
        let rule = HostRule::new("0.0.0.0".parse().unwrap(), &[]);
        assert!(check(&rule, "192.168.1.5:8080", None));
        assert!(check(&rule, "[fe80::1]:8080", None));
        assert!(!check(&rule, "evil.example:8080", None));
    }

    #[test]
    fn a_request_without_a_host_or_with_two_is_refused() {
        let rule = HostRule::new("127.0.0.1".parse().unwrap(), &[]);
        let mut headers = HeaderMap::new();
        assert!(rule.check(&Uri::from_static("/"), &headers).is_err());
        headers.append(header::HOST, "localhost".parse().unwrap());
        headers.append(header::HOST, "evil.example".parse().unwrap());
        assert!(rule.check(&Uri::from_static("/"), &headers).is_err());
    }
}
