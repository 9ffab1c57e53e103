//! The file that survives: SQLite in write-ahead mode, every commit on stable storage before it counts.
//!
//! One thread owns the connection. It takes all changes that are queued, commits them together, and then answers those
//! who wait; changes of one sender keep their order. A file is used by one process at a time. Owns schema and
//! migrations; never knows what a change means.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use plimsoll_models::chat::Message;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, params};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::chain::{ChainEnd, ChainKey, SessionId};
use super::compaction_record::{CompactionRecord, SpanRef};
use super::effective_form::EffectiveForm;
use super::head::Head;
use crate::budget::Zone;
use crate::engine::TenantId;

/// The file's name in the data folder.
const FILE: &str = "sessions.sqlite";

/// Each entry brings a store from its place in the list (`user_version`) to the next.
const MIGRATIONS: [&str; 2] = ["
    CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
    CREATE TABLE sessions (id TEXT PRIMARY KEY, tenant INTEGER NOT NULL, model TEXT NOT NULL, state TEXT NOT NULL) STRICT;
    CREATE TABLE turns (
        session TEXT NOT NULL, end BLOB NOT NULL, parent BLOB, message TEXT NOT NULL, spoken BLOB,
        PRIMARY KEY (session, end)
    ) STRICT;
    CREATE TABLE records (id TEXT PRIMARY KEY, session TEXT NOT NULL, started INTEGER NOT NULL, record TEXT NOT NULL) STRICT;
    CREATE TABLE forms (
        place INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, span TEXT NOT NULL, form TEXT NOT NULL
    ) STRICT;
    CREATE INDEX records_of_session ON records (session, started);
", "
    CREATE TABLE notices (session TEXT NOT NULL, end BLOB NOT NULL, text TEXT NOT NULL, PRIMARY KEY (session, end)) STRICT;
    CREATE TABLE heads (session TEXT PRIMARY KEY, head TEXT NOT NULL) STRICT;
"];

/// Why the store cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum StoreError {
    #[error("the data folder `{}` cannot be used: {reason}", path.display())]
    Folder { path: PathBuf, reason: String },
    #[error("the session store `{}` is in use by another process; stop it or give another --data-dir", path.display())]
    InUse { path: PathBuf },
    #[error("the session store `{}` is damaged: {reason}; move the file away to start with an empty one", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "the session store `{}` has version {found}, this program knows versions up to {known}; use a newer program",
        path.display()
    )]
    TooNew { path: PathBuf, found: usize, known: usize },
    #[error("the session store could not be written: {0}")]
    Write(String),
}

/// What a session counts and remembers beside its turns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Counters {
    pub failures_in_row: u32,
    pub compactions: u32,
    pub stopped: Option<String>,
    /// The highest zone the model was told of since the last compaction.
    pub told: Zone,
    pub policy_told: bool,
    pub compaction_untold: bool,
    /// The last turn of the newest conversation.
    pub newest: Option<ChainEnd>,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            failures_in_row: 0,
            compactions: 0,
            stopped: None,
            told: Zone::Normal,
            policy_told: false,
            compaction_untold: false,
            newest: None,
        }
    }
}

/// A turn as it is kept.
#[derive(Clone, Debug)]
pub(super) struct StoredTurn {
    pub end: ChainEnd,
    pub parent: Option<ChainEnd>,
    pub message: Message,
    pub spoken: Option<Vec<u32>>,
}

/// A session as it is kept.
#[derive(Clone, Debug)]
pub(super) struct StoredSession {
    pub id: SessionId,
    pub tenant: TenantId,
    pub model: String,
    pub counters: Counters,
    pub turns: Vec<StoredTurn>,
    /// Oldest first.
    pub records: Vec<CompactionRecord>,
    /// Oldest first.
    pub forms: Vec<(SpanRef, EffectiveForm)>,
    pub notices: Vec<(ChainEnd, String)>,
    pub head: Option<Head>,
}

impl StoredSession {
    /// One of which nothing is known yet.
    pub fn new(id: SessionId, tenant: TenantId, model: String) -> Self {
        Self {
            id,
            tenant,
            model,
            counters: Counters::default(),
            turns: Vec::new(),
            records: Vec::new(),
            forms: Vec::new(),
            notices: Vec::new(),
            head: None,
        }
    }
}

/// Something to write.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Session { id: SessionId, tenant: TenantId, model: String, counters: Counters },
    Turn { session: SessionId, turn: StoredTurn },
    Record(Box<CompactionRecord>),
    Form { session: SessionId, span: SpanRef, form: Box<EffectiveForm> },
    Notice { session: SessionId, end: ChainEnd, text: String },
    Head { session: SessionId, head: Box<Head> },
    Delete(SessionId),
}

struct Job {
    changes: Vec<Change>,
    done: Option<oneshot::Sender<Result<(), StoreError>>>,
}

/// The sending end of the store's thread, which ends with the last of them.
#[derive(Clone, Debug)]
pub(super) struct Store {
    jobs: Sender<Job>,
}

impl Store {
    /// Opens the store of a data folder, making both where they are missing, and reads what it holds.
    pub fn open(folder: &Path) -> Result<(Self, ChainKey, Vec<StoredSession>), StoreError> {
        make_folder(folder)?;
        let path = folder.join(FILE);
        let connection = Connection::open(&path).map_err(|error| understood(&error, &path))?;
        restrict(&path)?;
        Self::start(connection, &path)
    }

    /// A store that ends with the process.
    pub fn in_memory() -> Result<(Self, ChainKey), StoreError> {
        let path = PathBuf::from(":memory:");
        let connection = Connection::open_in_memory().map_err(|error| understood(&error, &path))?;
        Self::start(connection, &path).map(|(store, key, _)| (store, key))
    }

    fn start(mut connection: Connection, path: &Path) -> Result<(Self, ChainKey, Vec<StoredSession>), StoreError> {
        let failed = |error: rusqlite::Error| understood(&error, path);
        // Another process keeps its lock for as long as it lives, so waiting for it is of no use.
        connection.busy_timeout(Duration::ZERO).map_err(failed)?;
        connection
            .execute_batch("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
            .map_err(failed)?;
        // The first write takes the lock that keeps other processes out.
        let lock = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(failed)?;
        let check: String = lock.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
        if check != "ok" {
            return Err(StoreError::Damaged { path: path.to_owned(), reason: check });
        }
        let key = migrate(&lock, path)?;
        let sessions = read_all(&lock, path)?;
        lock.commit().map_err(failed)?;
        let (jobs, inbox) = channel();
        std::thread::Builder::new()
            .name("session-store".into())
            .spawn(move || write_until_closed(&mut connection, &inbox))
            .map_err(|error| StoreError::Write(error.to_string()))?;
        Ok((Self { jobs }, key, sessions))
    }

    /// Writes and waits until it is on stable storage.
    pub async fn write(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let (done, written) = oneshot::channel();
        let gone = || StoreError::Write("its thread has ended".into());
        self.jobs.send(Job { changes, done: Some(done) }).map_err(|_| gone())?;
        written.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Writes with the next commit; a failure is logged, and found again by the next one who waits.
    pub fn write_later(&self, changes: Vec<Change>) {
        if !changes.is_empty() {
            let _ = self.jobs.send(Job { changes, done: None });
        }
    }
}

fn write_until_closed(connection: &mut Connection, inbox: &Receiver<Job>) {
    // What could not be written is tried again before anything that came after it.
    let mut unwritten: Vec<Change> = Vec::new();
    while let Ok(first) = inbox.recv() {
        let jobs: Vec<Job> = std::iter::once(first).chain(inbox.try_iter()).collect();
        let mut together = unwritten.clone();
        together.extend(jobs.iter().flat_map(|job| job.changes.iter().cloned()));
        if commit(connection, &together).is_ok() {
            unwritten.clear();
            for done in jobs.into_iter().filter_map(|job| job.done) {
                let _ = done.send(Ok(()));
            }
            continue;
        }
        // One at a time, so that a change that cannot be written fails alone.
        for job in jobs {
            let mut changes = unwritten.clone();
            changes.extend(job.changes.iter().cloned());
            let result = commit(connection, &changes);
            match (&result, job.done) {
                (Ok(()), done) => {
                    unwritten.clear();
                    done.map(|done| done.send(Ok(())));
                }
                (Err(error), Some(done)) => {
                    let _ = done.send(Err(StoreError::Write(error.to_string())));
                }
                (Err(error), None) => {
                    tracing::error!(%error, "the session store could not be written; it is tried again");
                    unwritten = changes;
                }
            }
        }
    }
}

fn commit(connection: &mut Connection, changes: &[Change]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for change in changes {
        write(&transaction, change)?;
    }
    transaction.commit()
}

fn json<T: Serialize>(value: &T) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

fn write(transaction: &Transaction<'_>, change: &Change) -> rusqlite::Result<()> {
    match change {
        Change::Session { id, tenant, model, counters } => transaction
            .prepare_cached(
                "INSERT INTO sessions VALUES (?1, ?2, ?3, ?4) ON CONFLICT (id) DO UPDATE SET state = excluded.state",
            )?
            .execute(params![id.as_str(), tenant.0.cast_signed(), model, json(counters)?])?,
        Change::Turn { session, turn } => {
            let spoken = turn
                .spoken
                .as_ref()
                .map(|tokens| tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>());
            transaction
                .prepare_cached(
                    "INSERT INTO turns VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (session, end)
                     DO UPDATE SET spoken = coalesce(excluded.spoken, spoken)",
                )?
                .execute(params![
                    session.as_str(),
                    turn.end.0,
                    turn.parent.map(|end| end.0),
                    json(&turn.message)?,
                    spoken
                ])?
        }
        Change::Record(record) => transaction
            .prepare_cached(
                "INSERT INTO records VALUES (?1, ?2, ?3, ?4) ON CONFLICT (id) DO UPDATE SET record = excluded.record",
            )?
            .execute(params![
                record.id.as_str(),
                record.session.as_str(),
                record.started_ms.cast_signed(),
                json(record)?
            ])?,
        Change::Form { session, span, form } => transaction
            .prepare_cached("INSERT INTO forms (session, span, form) VALUES (?1, ?2, ?3)")?
            .execute(params![session.as_str(), json(span)?, json(form)?])?,
        Change::Notice { session, end, text } => transaction
            .prepare_cached("INSERT INTO notices VALUES (?1, ?2, ?3) ON CONFLICT (session, end) DO NOTHING")?
            .execute(params![session.as_str(), end.0, text])?,
        Change::Head { session, head } => transaction
            .prepare_cached(
                "INSERT INTO heads VALUES (?1, ?2) ON CONFLICT (session) DO UPDATE SET head = excluded.head",
            )?
            .execute(params![session.as_str(), json(head)?])?,
        Change::Delete(session) => {
            for table in [
                "sessions WHERE id",
                "turns WHERE session",
                "records WHERE session",
                "forms WHERE session",
                "notices WHERE session",
                "heads WHERE session",
            ] {
                transaction.execute(&format!("DELETE FROM {table} = ?1"), [session.as_str()])?;
            }
            0
        }
    };
    Ok(())
}

fn migrate(store: &Transaction<'_>, path: &Path) -> Result<ChainKey, StoreError> {
    let failed = |error: rusqlite::Error| understood(&error, path);
    let version: i64 = store.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    let version = usize::try_from(version).unwrap_or(usize::MAX);
    let Some(missing) = MIGRATIONS.get(version..) else {
        return Err(StoreError::TooNew { path: path.to_owned(), found: version, known: MIGRATIONS.len() });
    };
    for migration in missing {
        store.execute_batch(migration).map_err(failed)?;
    }
    store.pragma_update(None, "user_version", MIGRATIONS.len() as i64).map_err(failed)?;
    let known: Option<[u8; 32]> = store
        .query_row("SELECT value FROM meta WHERE name = 'chain key'", [], |row| row.get(0))
        .optional()
        .map_err(failed)?;
    if let Some(key) = known {
        return Ok(ChainKey(key));
    }
    let key = ChainKey::random();
    store.execute("INSERT INTO meta VALUES ('chain key', ?1)", [key.0]).map_err(failed)?;
    Ok(key)
}

fn read_all(store: &Transaction<'_>, path: &Path) -> Result<Vec<StoredSession>, StoreError> {
    let failed = |error: rusqlite::Error| understood(&error, path);
    let mut sessions = rows(store, "SELECT id, tenant, model, state FROM sessions ORDER BY rowid", [], |row| {
        let tenant = TenantId(row.get::<_, i64>(1)?.cast_unsigned());
        let counters = parsed(row, 3)?;
        Ok(StoredSession { counters, ..StoredSession::new(SessionId::from_stored(row.get(0)?), tenant, row.get(2)?) })
    })
    .map_err(failed)?;
    for session in &mut sessions {
        let id = [session.id.as_str()];
        let turns = "SELECT end, parent, message, spoken FROM turns WHERE session = ?1 ORDER BY rowid";
        session.turns = rows(store, turns, id, |row| {
            let spoken: Option<Vec<u8>> = row.get(3)?;
            Ok(StoredTurn {
                end: ChainEnd(row.get(0)?),
                parent: row.get::<_, Option<[u8; 32]>>(1)?.map(ChainEnd),
                message: parsed(row, 2)?,
                spoken: spoken.map(|bytes| {
                    let tokens = bytes.chunks_exact(4);
                    tokens.map(|token| u32::from_le_bytes(token.try_into().expect("four bytes"))).collect()
                }),
            })
        })
        .map_err(failed)?;
        let records = "SELECT record FROM records WHERE session = ?1 ORDER BY started, rowid";
        session.records = rows(store, records, id, |row| parsed(row, 0)).map_err(failed)?;
        let forms = "SELECT span, form FROM forms WHERE session = ?1 ORDER BY place";
        session.forms = rows(store, forms, id, |row| Ok((parsed(row, 0)?, parsed(row, 1)?))).map_err(failed)?;
        let notices = "SELECT end, text FROM notices WHERE session = ?1";
        session.notices = rows(store, notices, id, |row| Ok((ChainEnd(row.get(0)?), row.get(1)?))).map_err(failed)?;
        let heads = "SELECT head FROM heads WHERE session = ?1";
        session.head = rows(store, heads, id, |row| parsed(row, 0)).map_err(failed)?.pop();
    }
    Ok(sessions)
}

fn rows<T>(
    store: &Transaction<'_>,
    query: &str,
    parameters: impl rusqlite::Params,
    read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    store.prepare_cached(query)?.query_map(parameters, read)?.collect()
}

fn parsed<T: DeserializeOwned>(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    })
}

fn understood(error: &rusqlite::Error, path: &Path) -> StoreError {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::InUse { path },
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
            StoreError::Folder { path, reason: error.to_string() }
        }
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => StoreError::Write(error.to_string()),
        _ => StoreError::Damaged { path, reason: error.to_string() },
    }
}

fn make_folder(folder: &Path) -> Result<(), StoreError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|error| StoreError::Folder { path: folder.to_owned(), reason: error.to_string() })
}

/// Conversations are for their owner's eyes.
fn restrict(path: &Path) -> Result<(), StoreError> {
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(path, mode)
            .map_err(|error| StoreError::Folder { path: path.to_owned(), reason: error.to_string() })?;
    }
    Ok(())
}
