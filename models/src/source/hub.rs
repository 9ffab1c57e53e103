//! A file from the hub.
//!
//! `hf-hub` knows the hub's addresses and what its headers mean (commit, etag, size, redirects to the storage behind
//! it); the bytes are moved here, because a file of many gigabytes must be resumable, bounded in time and checked on
//! the way, which `hf-hub` leaves to its caller. The etag of a large file is its SHA-256, so every such file is
//! checked, known or not.
//!
//! Never retries for ever and never trusts a length. The transfer sends the token to the hub alone; `hf-hub`'s question
//! for the size also shows it to the storage that the hub names.

use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};
use ureq::http::Uri;

use super::deposit::{CopyError, Deposit};
use super::error::SourceError;
use super::hub_cache;
use super::known::HubFile;
use super::progress::Report;

/// Where the hub is unless `HF_ENDPOINT` says otherwise.
const ENDPOINT: &str = "https://huggingface.co";
/// Time to find out that nobody answers: long enough for a slow name server, short enough to wait for.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// Time for the few small requests that tell commit, etag and size.
const METADATA_LIMIT: Duration = Duration::from_secs(20);
/// Silence after which a transfer counts as dead.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// Attempts in a row that may bring nothing.
const FRUITLESS_ATTEMPTS: u32 = 4;

/// How the hub is reached.
#[derive(Debug, Clone)]
pub struct Hub {
    endpoint: String,
    token: Option<String>,
    connect_limit: Duration,
    read_limit: Duration,
    pause: Duration,
}

impl Hub {
    /// The hub of this user: `HF_ENDPOINT`, `HF_TOKEN` or the token file.
    pub fn from_env() -> Self {
        let text = |name| std::env::var(name).ok().map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let from_file = || {
            let content = std::fs::read_to_string(hub_cache::token_path()?).ok()?;
            Some(content.trim().to_owned()).filter(|token| !token.is_empty())
        };
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        Self::at(&endpoint, text("HF_TOKEN").or_else(from_file))
    }

    /// A hub at another address.
    pub fn at(endpoint: &str, token: Option<String>) -> Self {
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            connect_limit: CONNECT_LIMIT,
            read_limit: READ_LIMIT,
            pause: Duration::from_millis(500),
        }
    }

    /// The address.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    #[cfg(test)]
    pub(crate) fn impatient(mut self) -> Self {
        self.connect_limit = Duration::from_millis(500);
        self.read_limit = Duration::from_millis(500);
        self.pause = Duration::from_millis(1);
        self
    }

    /// Whether somebody answers at the hub's address (or at the proxy that leads there), found out within seconds.
    pub fn reach(&self) -> Result<(), SourceError> {
        let unreachable = |reason: String| SourceError::HubUnreachable { endpoint: self.endpoint.clone(), reason };
        let uri: Uri = self.endpoint.parse().map_err(|error| unreachable(format!("not an address: {error}")))?;
        let host = uri.host().ok_or_else(|| unreachable("the address has no host".into()))?;
        let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("http") { 80 } else { 443 });
        let (host, port) = match ureq::Proxy::try_from_env().filter(|proxy| !proxy.is_no_proxy(&uri)) {
            Some(proxy) => (proxy.host().to_owned(), proxy.port()),
            None => (host.trim_matches(['[', ']']).to_owned(), port),
        };
        let limit = self.connect_limit;
        // Name resolution cannot be interrupted, so it is left behind in its thread if it takes too long.
        let answer = within(limit, move || -> Result<(), String> {
            let addresses = (host.as_str(), port).to_socket_addrs().map_err(|error| error.to_string())?;
            let mut last = format!("{host} has no address");
            for address in addresses {
                match TcpStream::connect_timeout(&address, limit) {
                    Ok(_) => return Ok(()),
                    Err(error) => last = format!("{address}: {error}"),
                }
            }
            Err(last)
        });
        match answer {
            Some(answer) => answer.map_err(unreachable),
            None => Err(unreachable(format!("no answer within {} s", limit.as_secs_f32()))),
        }
    }

    /// Brings `file` to `target`. `sha256` is the checksum if it is known beforehand, `bytes` the size.
    pub fn download(
        &self,
        file: &HubFile,
        target: &Path,
        bytes: Option<u64>,
        sha256: Option<&str>,
        report: Report,
    ) -> Result<PathBuf, SourceError> {
        self.reach()?;
        let announced = self.announced(file)?;
        let what = file.to_string();
        if let Some(expected) = bytes.filter(|bytes| *bytes != announced.bytes) {
            return Err(SourceError::WrongSize { what, expected, found: announced.bytes });
        }
        let lfs_sha256 = Some(announced.etag.as_str()).filter(|etag| is_sha256(etag));
        if let (Some(expected), Some(found)) = (sha256, lfs_sha256)
            && expected != found
        {
            return Err(SourceError::WrongChecksum { what, expected: expected.to_owned(), found: found.to_owned() });
        }
        let mut deposit = Deposit::open(target, announced.bytes, &announced.etag)?;
        self.transfer(&announced.url, &what, &mut deposit, report)?;
        deposit.finish(sha256.or(lfs_sha256))
    }

    /// What the hub says about a file.
    fn announced(&self, file: &HubFile) -> Result<Announced, SourceError> {
        let api = self.api().map_err(|error| hub_error(&self.endpoint, error))?;
        let repository = Repo::with_revision(file.repository.clone(), RepoType::Model, file.revision.clone());
        let url = api.repo(repository).url(&file.path);
        // hf-hub sets no time limit and takes some odd answers for impossible; its thread contains both.
        let answer = within(METADATA_LIMIT, {
            let url = url.clone();
            move || api.metadata(&url)
        });
        match answer {
            Some(Ok(metadata)) => {
                Ok(Announced { etag: metadata.etag().to_owned(), bytes: metadata.size() as u64, url })
            }
            Some(Err(error)) => Err(hub_error(&url, error)),
            None => Err(SourceError::HubAnswer {
                url,
                reason: format!("no usable answer within {} s", METADATA_LIMIT.as_secs()),
            }),
        }
    }

    fn api(&self) -> Result<Api, ApiError> {
        // The cache folder is hf-hub's place for downloads, which are not made here; only the token matters.
        ApiBuilder::from_cache(Cache::new(PathBuf::new()))
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_user_agent("plimsoll", env!("CARGO_PKG_VERSION"))
            .with_progress(false)
            .build()
    }

    /// Fills the deposit, going on after interruptions as long as each attempt brings something.
    fn transfer(&self, url: &str, what: &str, deposit: &mut Deposit, report: Report) -> Result<(), SourceError> {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_connect(Some(self.connect_limit))
            .timeout_per_read(Some(self.read_limit))
            .redirect_auth_headers(ureq::config::RedirectAuthHeaders::SameHost)
            // A compressed body could not be continued at a byte of the file.
            .accept_encoding("identity")
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        let mut progress = report.start(what, deposit.needed());
        let mut fruitless = 0;
        while deposit.len() < deposit.needed() {
            let before = deposit.len();
            progress.set(before);
            let reason = match self.request(&agent, url, deposit, &mut |len| progress.set(len)) {
                Ok(()) if deposit.len() > before => continue,
                Ok(()) => "the hub sent nothing".to_owned(),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(reason)) => reason,
            };
            fruitless = if deposit.len() > before { 0 } else { fruitless + 1 };
            if fruitless >= FRUITLESS_ATTEMPTS {
                let (received, expected) = (deposit.len(), deposit.needed());
                return Err(SourceError::Interrupted { what: what.to_owned(), received, expected, reason });
            }
            progress.say(&format!("{what}: {reason}; going on at byte {}", deposit.len()));
            std::thread::sleep(self.pause * 2u32.pow(fruitless));
        }
        Ok(())
    }

    /// One request for everything that is missing.
    fn request(
        &self,
        agent: &ureq::Agent,
        url: &str,
        deposit: &mut Deposit,
        moved: &mut impl FnMut(u64),
    ) -> Result<(), Failure> {
        let start = deposit.len();
        let mut request = agent.get(url).header("Range", format!("bytes={start}-"));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let response = match request.call() {
            Ok(response) => response,
            Err(ureq::Error::StatusCode(status @ (429 | 500..))) => {
                return Err(Failure::Passing(format!("the hub answered {status}")));
            }
            Err(ureq::Error::StatusCode(status)) => return Err(Failure::Final(status_error(url, status))),
            Err(error) => return Err(Failure::Passing(error.to_string())),
        };
        let range = response.headers().get("content-range").and_then(|value| value.to_str().ok());
        match (response.status().as_u16(), range.and_then(range_start)) {
            (206, Some(begins)) if begins == start => {}
            (206, _) => {
                let reason = format!("asked for bytes from {start}, got the range {range:?}");
                return Err(Failure::Final(SourceError::HubAnswer { url: url.to_owned(), reason }));
            }
            // A server that knows no ranges sends the whole file again.
            _ => deposit.cut(0).map_err(Failure::Final)?,
        }
        let mut body = response.into_body().into_reader();
        deposit.copy_from(&mut body, moved).map_err(|error| match error {
            CopyError::Source(error) => Failure::Passing(error.to_string()),
            CopyError::Store(error) => Failure::Final(error),
        })
    }
}

/// What the hub says about a file before it is sent.
struct Announced {
    url: String,
    etag: String,
    bytes: u64,
}

/// Whether another attempt makes sense.
enum Failure {
    Passing(String),
    Final(SourceError),
}

/// The first byte of a `Content-Range: bytes FIRST-LAST/SIZE`.
fn range_start(value: &str) -> Option<u64> {
    value.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

/// Whether an etag is the SHA-256 that large files have, not the git object id of small ones.
fn is_sha256(etag: &str) -> bool {
    etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn hub_error(url: &str, error: ApiError) -> SourceError {
    let reason = match error {
        ApiError::RequestError(error) => match *error {
            ureq::Error::StatusCode(status) => return status_error(url, status),
            other => return SourceError::HubUnreachable { endpoint: url.to_owned(), reason: other.to_string() },
        },
        other => other.to_string(),
    };
    SourceError::HubAnswer { url: url.to_owned(), reason }
}

fn status_error(url: &str, status: u16) -> SourceError {
    let hint = match status {
        401 | 403 => " (private, gated or misspelt: accept its terms on the hub and set HF_TOKEN, or check the name)",
        404 => " (no such repository, revision or file)",
        _ => "",
    };
    SourceError::HubStatus { url: url.to_owned(), status, hint }
}

/// Runs `work` in a thread of its own; nothing if it takes longer than `limit` or panics. What it does then, it does
/// for nobody.
fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(limit).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::source::deposit::sha256_of;
    use crate::source::loopback::{Reply, Request, serve};

    const ETAG: &str = "b1a5e8ee9fa2ba1c2d8ea5ff14f0fbb52cb1e0b1f8ea0a3a5b2a2c4a1ee0e0aa";

    fn content() -> Vec<u8> {
        (0..1_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    fn file() -> HubFile {
        HubFile { repository: "org/name".into(), revision: "main".into(), path: "x.gguf".into() }
    }

    /// The hub: the resolve address tells commit, etag and size and redirects to storage; storage serves ranges.
    fn hub_reply(request: &Request, content: &[u8], etag: &str) -> Reply {
        match request.path.as_str() {
            "/org/name/resolve/main/x.gguf" => Reply::status(302)
                .header("Location", &format!("http://{}/storage/blob?signature=1", request.host))
                .header("X-Repo-Commit", "0123456789abcdef0123456789abcdef01234567")
                .header("X-Linked-Etag", &format!("\"{etag}\""))
                .header("X-Linked-Size", &content.len().to_string()),
            "/storage/blob?signature=1" => ranged(request, content),
            _ => Reply::status(404),
        }
    }

    fn ranged(request: &Request, content: &[u8]) -> Reply {
        let range = request.header("range").expect("every request names a range");
        let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let first: usize = first.parse().unwrap();
        let last = last.parse().unwrap_or(content.len() - 1);
        Reply::status(206)
            .header("Content-Range", &format!("bytes {first}-{last}/{}", content.len()))
            .body(content[first..=last].to_vec())
    }

    fn fetch(endpoint: &str, sha256: Option<&str>, target: &Path) -> Result<PathBuf, SourceError> {
        Hub::at(endpoint, None).impatient().download(&file(), target, None, sha256, Report::Silent)
    }

    /// The content's checksum, by way of a file.
    fn checksum(content: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("x"), content).unwrap();
        sha256_of(&folder.path().join("x")).unwrap()
    }

    #[test]
    fn a_file_comes_through_the_redirect_and_is_checked_against_its_etag() {
        let content = content();
        let sha256 = checksum(&content);
        let server = serve({
            let (content, sha256) = (content.clone(), sha256.clone());
            move |request| hub_reply(request, &content, &sha256)
        });
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("x.gguf");
        fetch(&server.address(), None, &target).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), content);
    }

    #[test]
    fn content_that_is_not_what_the_etag_says_is_discarded() {
        let server = serve(|request| hub_reply(request, &content(), ETAG));
        let folder = tempfile::tempdir().unwrap();
        let error = fetch(&server.address(), None, &folder.path().join("x.gguf")).unwrap_err();
        assert!(matches!(&error, SourceError::WrongChecksum { expected, .. } if expected == ETAG), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_the_hub_announces_as_another_is_not_even_fetched() {
        let transfers = Arc::new(AtomicUsize::new(0));
        let server = serve({
            let transfers = transfers.clone();
            move |request| {
                let range = request.header("range").unwrap_or_default().to_owned();
                transfers.fetch_add(usize::from(range != "bytes=0-0"), Ordering::SeqCst);
                hub_reply(request, &content(), ETAG)
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let known = checksum(b"something else");
        let error = fetch(&server.address(), Some(&known), &folder.path().join("x.gguf")).unwrap_err();
        assert!(matches!(error, SourceError::WrongChecksum { .. }), "{error}");
        let hub = Hub::at(&server.address(), None).impatient();
        let error = hub.download(&file(), &folder.path().join("x"), Some(7), None, Report::Silent).unwrap_err();
        assert!(matches!(error, SourceError::WrongSize { expected: 7, found: 1_000_000, .. }), "{error}");
        assert_eq!(transfers.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn an_interrupted_transfer_goes_on_where_it_stopped() {
        let content = content();
        let sha256 = checksum(&content);
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let server = serve({
            let (content, sha256, ranges) = (content.clone(), sha256.clone(), ranges.clone());
            move |request| {
                let reply = hub_reply(request, &content, &sha256);
                let range = request.header("range").unwrap_or_default().to_owned();
                if !request.path.starts_with("/storage") || range == "bytes=0-0" {
                    return reply;
                }
                ranges.lock().unwrap().push(range);
                if ranges.lock().unwrap().len() < 3 { reply.cut_after(300_000) } else { reply }
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("x.gguf");
        fetch(&server.address(), Some(&sha256), &target).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), content);
        assert_eq!(*ranges.lock().unwrap(), ["bytes=0-", "bytes=300000-", "bytes=600000-"]);
    }

    #[test]
    fn a_transfer_that_never_recovers_is_kept_for_the_next_attempt() {
        let content = content();
        let sha256 = checksum(&content);
        let broken = Arc::new(AtomicUsize::new(1));
        let server = serve({
            let (content, sha256, broken) = (content.clone(), sha256.clone(), broken.clone());
            move |request| {
                let reply = hub_reply(request, &content, &sha256);
                match request.header("range") {
                    Some("bytes=0-") if request.path.starts_with("/storage") => reply.cut_after(123_456),
                    Some("bytes=123456-") if broken.load(Ordering::SeqCst) == 1 => reply.cut_after(0),
                    _ => reply,
                }
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("x.gguf");
        let error = fetch(&server.address(), Some(&sha256), &target).unwrap_err();
        assert!(matches!(error, SourceError::Interrupted { received: 123_456, expected: 1_000_000, .. }), "{error}");
        assert!(!target.exists());
        broken.store(0, Ordering::SeqCst);
        fetch(&server.address(), Some(&sha256), &target).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), content);
    }

    #[test]
    fn a_stalled_transfer_is_given_up_and_asked_for_again() {
        let content = content();
        let sha256 = checksum(&content);
        let stalled = Arc::new(AtomicUsize::new(0));
        let server = serve({
            let (content, sha256, stalled) = (content.clone(), sha256.clone(), stalled.clone());
            move |request| {
                let reply = hub_reply(request, &content, &sha256);
                match request.header("range") {
                    Some("bytes=0-") if request.path.starts_with("/storage") => {
                        stalled.fetch_add(1, Ordering::SeqCst);
                        reply.stall_after(500_000)
                    }
                    _ => reply,
                }
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("x.gguf");
        fetch(&server.address(), Some(&sha256), &target).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), content);
        assert_eq!(stalled.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_server_without_ranges_sends_the_whole_file_again() {
        let content = content();
        let sha256 = checksum(&content);
        let requests = Arc::new(AtomicUsize::new(0));
        let server = serve({
            let (content, sha256, requests) = (content.clone(), sha256.clone(), requests.clone());
            move |request| {
                if request.path.starts_with("/storage") && request.header("range") != Some("bytes=0-0") {
                    let whole = Reply::status(200).body(content.clone());
                    let first = requests.fetch_add(1, Ordering::SeqCst) == 0;
                    return if first { whole.cut_after(400_000) } else { whole };
                }
                hub_reply(request, &content, &sha256)
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("x.gguf");
        fetch(&server.address(), Some(&sha256), &target).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), content);
        assert_eq!(requests.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn refusals_say_what_they_mean() {
        for (status, hint) in [(404, "no such repository"), (401, "HF_TOKEN"), (403, "HF_TOKEN")] {
            let server = serve(move |_| Reply::status(status));
            let folder = tempfile::tempdir().unwrap();
            let error = fetch(&server.address(), None, &folder.path().join("x")).unwrap_err();
            assert!(matches!(error, SourceError::HubStatus { status: found, .. } if found == status), "{error}");
            assert!(error.to_string().contains(hint), "{error}");
        }
    }

    #[test]
    fn an_answer_that_is_not_the_hubs_is_an_error_and_no_panic() {
        for reply in [
            Reply::status(200).body(b"<html>log in to the hotel network</html>".to_vec()),
            Reply::status(302).header("X-Repo-Commit", "0").header("ETag", "\"0\""),
            Reply::status(302).header("Location", "::::").header("X-Repo-Commit", "0").header("ETag", "\"0\""),
            Reply::status(206).header("X-Repo-Commit", "0").header("ETag", "0").header("Content-Range", "bytes 0-0/x"),
        ] {
            let server = serve(move |_| reply.clone());
            let folder = tempfile::tempdir().unwrap();
            let error = fetch(&server.address(), None, &folder.path().join("x")).unwrap_err();
            assert!(matches!(error, SourceError::HubAnswer { .. } | SourceError::HubUnreachable { .. }), "{error}");
        }
    }

    #[test]
    fn nobody_there_is_noticed_at_once() {
        let server = serve(|_| Reply::status(404));
        let address = server.address();
        drop(server);
        let folder = tempfile::tempdir().unwrap();
        let error = fetch(&address, None, &folder.path().join("x")).unwrap_err();
        assert!(matches!(error, SourceError::HubUnreachable { .. }), "{error}");
        for endpoint in ["", "not an address", "http://name.invalid"] {
            assert!(matches!(Hub::at(endpoint, None).reach(), Err(SourceError::HubUnreachable { .. })), "{endpoint}");
        }
    }

    #[test]
    fn the_token_goes_to_the_hub_and_not_to_the_storage_behind_it() {
        let content = content();
        let sha256 = checksum(&content);
        let storage_saw = Arc::new(Mutex::new(Vec::new()));
        let storage = serve({
            let (content, saw) = (content.clone(), storage_saw.clone());
            move |request| {
                saw.lock().unwrap().push(request.header("authorization").map(str::to_owned));
                ranged(request, &content)
            }
        });
        let hub_saw = Arc::new(Mutex::new(Vec::new()));
        // Another name for the same machine, so that the storage is another host.
        let location = storage.address().replace("127.0.0.1", "localhost") + "/blob";
        let server = serve({
            let (content, sha256, saw) = (content.clone(), sha256.clone(), hub_saw.clone());
            move |request| {
                saw.lock().unwrap().push(request.header("authorization").map(str::to_owned));
                let mut reply = hub_reply(request, &content, &sha256);
                reply.set("Location", &location);
                reply
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let hub = Hub::at(&server.address(), Some("secret".into())).impatient();
        hub.download(&file(), &folder.path().join("x"), None, None, Report::Silent).unwrap();
        assert!(hub_saw.lock().unwrap().iter().all(|header| header.as_deref() == Some("Bearer secret")));
        // hf-hub's own probe of the storage does carry its default headers; the transfer must not.
        assert_eq!(storage_saw.lock().unwrap().last().unwrap(), &None);
    }
}
