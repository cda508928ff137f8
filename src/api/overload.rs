//! What the log says of calls that fail though nothing is wrong: thousands may do so each second, and writing a line about
//! each would be work taken from the others.

use std::time::Duration;

use axum::http::HeaderMap;
use covault_core::fault::{Fault, FaultCode};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::headers::CODE;

/// Calls that are refused within so long share a line.
const APART: Duration = Duration::from_secs(10);

/// Calls that were refused, and when that was last said.
#[derive(Default)]
struct RefusedCalls {
    said: Option<Instant>,
    since: u64,
}

impl RefusedCalls {
    /// One more; how many there are to tell of, when it is time.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.since = self.since.saturating_add(1);
        if self
            .said
            .is_some_and(|said| now.duration_since(said) < APART)
        {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.since))
    }
}

/// Whether nothing is wrong where a call fails with this: there is too much to do, which is said once for many, or its
/// request continues.
pub fn is_no_trouble(fault: &Fault) -> bool {
    static REFUSED: Mutex<RefusedCalls> = Mutex::new(RefusedCalls {
        said: None,
        since: 0,
    });
    match fault.code() {
        FaultCode::Busy { .. } => {
            let count = REFUSED.lock().count(Instant::now());
            if let Some(calls) = count {
                tracing::warn!(
                    calls,
                    last = fault.message(),
                    "calls are refused: there is too much to do"
                );
            }
            true
        }
        FaultCode::StillPending => true,
        _ => false,
    }
}

/// The same of an answer, by the code in its headers.
pub fn is_no_trouble_answer(headers: &HeaderMap) -> bool {
    let codes = [FaultCode::Busy { seconds: 0 }, FaultCode::StillPending];
    let mut names = codes.into_iter().filter_map(FaultCode::name);
    let code = headers.get(CODE);
    code.is_some_and(|code| names.any(|name| code == name))
}

#[cfg(test)]
#[allow(non_snake_case, reason = "tests")]
mod tests {
    use super::*;
    use crate::api::headers::mark_error;

    #[test]
    fn refused_calls__should_share_a_line_each_ten_seconds() {
        let (begun, mut calls) = (Instant::now(), RefusedCalls::default());
        let mut count = |ms| calls.count(begun + Duration::from_millis(ms));
        assert_eq!(count(0), Some(1));
        assert_eq!(count(1), None);
        assert_eq!(count(9_999), None);
        assert_eq!(count(10_000), Some(3));
        assert_eq!(count(10_001), None);
        assert_eq!(count(60_000), Some(2));
    }

    #[test]
    fn trouble__should_be_what_an_operator_can_mend() {
        let of_code = |code| Fault::unavailable("no").with_code(code);
        for (fault, is_none) in [
            (of_code(FaultCode::Busy { seconds: 1 }), true),
            (of_code(FaultCode::StillPending), true),
            (of_code(FaultCode::StoreUnavailable), false),
            (of_code(FaultCode::NotEnoughSigners), false),
            (Fault::bug("no"), false),
        ] {
            assert_eq!(is_no_trouble(&fault), is_none, "{fault:?}");
            let mut headers = HeaderMap::new();
            assert!(!is_no_trouble_answer(&headers));
            mark_error(&fault, fault.stable_code(), &mut headers);
            assert_eq!(is_no_trouble_answer(&headers), is_none, "{fault:?}");
        }
    }
}
