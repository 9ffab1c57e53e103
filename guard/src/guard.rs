//! The guard of one session.
//!
//! The policy is a later step: at present every call is allowed, calls are counted, and the state is always normal.

use crate::{Call, Decision, Evidence, Facts, GuardLimits, GuardState, GuardStatus};

/// Watches the calls of one session. Nothing is denied at present.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    limits: GuardLimits,
    calls: u64,
}

impl Guard {
    /// A guard with these limits.
    #[must_use]
    pub fn new(limits: GuardLimits) -> Self {
        Self { limits, calls: 0 }
    }

    /// The limits it was given.
    #[must_use]
    pub fn limits(&self) -> &GuardLimits {
        &self.limits
    }

    /// Whether this call may run, at a time in milliseconds. Always at present.
    pub fn authorize(&mut self, call: &Call, now_ms: u64) -> Decision {
        let _ = (call, now_ms);
        self.calls += 1;
        Decision::Allow
    }

    /// What came of a call, and by whose word. Without effect at present.
    pub fn report(&mut self, call_id: &str, facts: &Facts, evidence: Evidence, now_ms: u64) -> GuardState {
        let _ = (call_id, facts, evidence, now_ms);
        GuardState::Normal
    }

    /// A new message of the user: everything is forgotten.
    pub fn user_message(&mut self) {
        self.calls = 0;
    }

    /// What is published of it.
    #[must_use]
    pub fn status(&self) -> GuardStatus {
        GuardStatus { calls: self.calls, ..GuardStatus::default() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_call_is_allowed_and_counted_until_the_user_speaks() {
        let mut guard = Guard::new(GuardLimits::default());
        let call = Call { call_id: "call_1".into(), tool: "bash".into(), arguments: json!({"command": "false"}) };
        let failed = Facts { exit_code: Some(1), ..Facts::default() };
        for step in 0..100 {
            assert_eq!(guard.authorize(&call, step), Decision::Allow);
            assert_eq!(guard.report("call_1", &failed, Evidence::Verified, step), GuardState::Normal);
        }
        assert_eq!(guard.status().calls, 100);
        guard.user_message();
        assert_eq!(guard.status(), GuardStatus::default());
    }

    #[test]
    fn the_status_has_the_fields_of_the_wire_format() {
        let status = serde_json::to_value(Guard::default().status()).expect("json");
        assert_eq!(status, json!({"state": "normal", "reason": null, "no_progress": 0, "calls": 0, "denied": []}));
        let denied = Decision::Deny { reason: "it repeats itself".into() };
        let denied = serde_json::to_value(denied).expect("json");
        assert_eq!(denied, json!({"decision": "deny", "reason": "it repeats itself"}));
    }
}
