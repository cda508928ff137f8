//! What the log says of calls that are refused for their admin token, or for what they have in place of one: somebody may have
//! found a token, or tries some.

use std::{net::IpAddr, num::NonZeroU32};

use covault_actors::gateway::AdminCaller;
use covault_core::{
    fault::{Class, Fault},
    ids::TokenId,
};

use super::{
    address::network,
    limiter::{Limiter, MonotonicTicks},
    meter::{self, Refused},
};

/// Lines of all of them in a minute.
const LINES: NonZeroU32 = NonZeroU32::new(60).unwrap();

/// What the admin token of the file is called here.
pub const OF_THE_FILE: &str = "the token of serve.admin_token_file";

/// A token that is known.
#[derive(Clone, Debug)]
pub struct KnownToken {
    /// Its id.
    pub id: TokenId,
    /// What operators call it.
    pub name: String,
    /// Whether it is one of the admin API.
    pub is_admin: bool,
}

impl KnownToken {
    /// That of a caller of the admin API.
    pub fn of_operator(id: TokenId, admin: &AdminCaller) -> Self {
        Self {
            id,
            name: (admin.token.clone()).unwrap_or_else(|| OF_THE_FILE.to_owned()),
            is_admin: true,
        }
    }
}

/// A call that was refused.
pub struct RefusedCall<'a> {
    /// With which token, where that is known.
    pub token: Option<&'a KnownToken>,
    /// From where.
    pub address: Option<IpAddr>,
    /// What was to be done.
    pub operation: &'a str,
    /// The id of the call.
    pub request_id: &'a str,
    /// Why.
    pub fault: &'a Fault,
}

/// Refused calls of operators, or of those who would be: one line a minute for each token and address.
pub struct RefusalLog {
    callers: Limiter<(Option<TokenId>, Option<IpAddr>)>,
    all: Limiter<()>,
}

impl RefusalLog {
    /// On the machine's clock.
    pub fn new() -> Self {
        Self::on(&MonotonicTicks::monotonic())
    }

    fn on(ticks: &MonotonicTicks) -> Self {
        Self {
            callers: Limiter::per_minute(NonZeroU32::MIN, ticks),
            all: Limiter::per_minute(LINES, ticks),
        }
    }

    /// Counts a call that was refused for who called, and logs it unless the same caller was in the log within a minute.
    pub fn note(&self, call: &RefusedCall<'_>) {
        if !matches!(
            call.fault.class(),
            Class::Unauthenticated | Class::Forbidden
        ) {
            return;
        }
        meter::refused(Refused::AdminToken);
        let caller = (call.token.map(|token| token.id), call.address.map(network));
        if self.callers.check(&caller).is_err() || self.all.check(&()).is_err() {
            return;
        }
        tracing::warn!(
            request_id = call.request_id,
            token = call.token.map(|token| &token.name),
            address = call.address.map(tracing::field::display),
            operation = call.operation,
            error_code = call.fault.stable_code(),
            fault = ?call.fault,
            "refused a call for its admin token; more of this token and address within a minute are counted only"
        );
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        time::Duration,
    };

    use tracing_subscriber::filter::LevelFilter;

    use super::*;
    use crate::log_capture::LogCapture;

    #[test]
    fn refusals__should_be_logged_once_a_minute_for_each_token_and_address() {
        let now_s = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&now_s);
        let ticks = MonotonicTicks(Arc::new(move || {
            Duration::from_secs(read.load(Ordering::SeqCst))
        }));
        let log = RefusalLog::on(&ticks);
        let anna = KnownToken {
            id: TokenId::from_bytes([1; 16]),
            name: "anna".into(),
            is_admin: true,
        };
        let note = |token: Option<&KnownToken>, last: u8, fault: &Fault| {
            log.note(&RefusedCall {
                token,
                address: Some(IpAddr::from([192, 0, 2, last])),
                operation: "revokeToken",
                request_id: "r-1",
                fault,
            });
        };
        let forbidden = Fault::new(Class::Forbidden, "this token is read-only");
        let written = LogCapture::start(LevelFilter::INFO);
        let lines = || written.lines("refused a call");
        for _ in 0..5 {
            note(Some(&anna), 1, &forbidden);
            note(Some(&anna), 2, &forbidden);
            note(None, 1, &Fault::unauthenticated());
            // Not for who called.
            note(Some(&anna), 3, &Fault::field("name", "is required"));
        }
        assert_eq!(lines().len(), 3, "{:#?}", lines());
        for word in ["WARN", "anna", "192.0.2.1", "revokeToken", "read-only"] {
            assert!(lines()[0].contains(word), "{word}: {}", lines()[0]);
        }
        now_s.store(60, Ordering::SeqCst);
        note(Some(&anna), 1, &forbidden);
        assert_eq!(lines().len(), 4);
        // Guesses from very many addresses do not fill the disk.
        for last in 3..=255 {
            note(None, last, &Fault::unauthenticated());
        }
        assert!(lines().len() <= 64, "{}", lines().len());
    }
}
