//! What was seen of a call, and by whom.
//!
//! Types only. A fact that nobody saw is absent: absent is neither true nor false, and what is unknown is never
//! read-only, never a change and never a success.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A tool call the model asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The call's id in the transcript.
    pub call_id: String,
    /// The tool's name.
    pub tool: String,
    /// Its arguments as the model gave them.
    pub arguments: Value,
}

/// Where facts come from, in rising trust.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Everything else.
    #[default]
    Unknown,
    /// Read from the known result shape of a widespread agent.
    Reported,
    /// Seen by an executor: the managed one, or a client with the executor role's key.
    Verified,
}

/// What a background job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It runs.
    Running,
    /// It was told to stop and has not yet.
    Stopping,
    /// It is over.
    Ended,
}

/// A wait on a background job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The job's id: the whole identity of a wait.
    pub id: String,
    /// Its state at the end of the wait.
    pub state: JobState,
    /// How long the wait lasted, in milliseconds.
    pub waited_ms: u64,
}

/// A file before and after the call, as hashes; `None` where it does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangedFile {
    /// Its path.
    pub path: String,
    /// Its hash before the call.
    pub before: Option<String>,
    /// Its hash after the call.
    pub after: Option<String>,
}

/// What is known of a call's result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Facts {
    /// Whether the tool said that it failed.
    pub is_error: Option<bool>,
    /// Exit code of the command.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether it ran out of time.
    pub timed_out: Option<bool>,
    /// Whether somebody aborted it.
    pub aborted: Option<bool>,
    /// Whether it was not permitted.
    pub permission_denied: Option<bool>,
    /// Whether the tool only reads. What the model claims takes no part.
    pub read_only: Option<bool>,
    /// Files that were changed.
    pub changed_files: Vec<ChangedFile>,
    /// Revision of the work tree after the call.
    pub revision: Option<String>,
    /// The background job the call waited on.
    pub job: Option<Job>,
    /// How long the call took, in milliseconds.
    pub duration_ms: Option<u64>,
    /// The result's text.
    pub text: Option<String>,
    /// The result's structured value.
    pub value: Option<Value>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn facts_are_read_from_what_an_executor_posts_and_absent_ones_stay_unknown() {
        let facts: Facts = serde_json::from_value(json!({
            "exit_code": 124, "timed_out": true, "job": {"id": "j1", "state": "stopping", "waited_ms": 1500},
            "changed_files": [{"path": "a.rs", "before": "00", "after": null}],
        }))
        .expect("facts");
        assert_eq!((facts.exit_code, facts.timed_out, facts.is_error), (Some(124), Some(true), None));
        assert_eq!(facts.job.expect("a job").state, JobState::Stopping);
        assert_eq!(facts.changed_files[0].after, None);
        assert!(
            serde_json::from_value::<Facts>(json!({"exitcode": 1})).is_err(),
            "a misspelt fact is not lost silently"
        );
    }

    #[test]
    fn verified_facts_are_trusted_most() {
        assert!(Evidence::Unknown < Evidence::Reported && Evidence::Reported < Evidence::Verified);
    }
}
