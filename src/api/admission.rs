//! Admission: how many calls are in progress at once, and how fast an address and a token may call.

use std::{net::IpAddr, sync::Arc, time::Duration};

use covault_actors::gateway::{Share, Shares};
use covault_core::{
    fault::{Class, Fault, FaultCode},
    ids::TokenId,
};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use super::limiter::CallRate;
use super::{
    address::network,
    limiter::{Limiter, MonotonicTicks},
    meter::{self, Refused},
};

/// What a call without a known token costs its address, beside what every call costs.
const PENALTY: usize = 9;

/// What is admitted.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionLimits {
    /// Calls in progress at once, those whose body is still being read included.
    pub max_in_flight: usize,
    /// Bytes of their bodies, together.
    pub max_in_flight_bytes: usize,
    /// Bytes of answers that their callers have not read yet, together.
    pub max_unread_bytes: usize,
    /// Event listeners at once.
    pub max_listeners: usize,
    /// For each token.
    pub per_token: CallRate,
    /// For each address of a client.
    pub per_address: CallRate,
}

/// Calls of operators in progress at once: they are few.
const MAX_OPERATORS_IN_FLIGHT: usize = 256;
/// What an answer takes beside its bytes, in bytes.
const ANSWER_OVERHEAD: usize = 1024;
/// What a listener that does not read has waiting, in bytes: 16 events ([`crate::http::events`]).
const LISTENER_BYTES: usize = 16 * 1024;

/// A call that was not admitted, or failed.
#[derive(Clone, Debug)]
pub struct CallRefusal {
    /// Why.
    pub fault: Fault,
    /// After how many seconds it is worth another try.
    pub retry_after: Option<u64>,
}

impl From<Fault> for CallRefusal {
    fn from(fault: Fault) -> Self {
        let retry_after = match (fault.class(), fault.code()) {
            (Class::Unavailable, FaultCode::Busy { seconds }) => Some(u64::from(seconds.max(1))),
            (Class::Limited | Class::Unavailable | Class::Peer { .. }, _) => Some(1),
            _ => None,
        };
        Self { fault, retry_after }
    }
}

/// The gate that every call goes through.
pub struct Admission {
    limits: AdmissionLimits,
    in_flight: Arc<Semaphore>,
    in_flight_of: Arc<Shares<TokenId>>,
    bytes: Arc<Shares<TokenId>>,
    unread: Arc<Shares<TokenId>>,
    listeners: Arc<Shares<TokenId>>,
    tokens: Option<Limiter<TokenId>>,
    addresses: Option<Limiter<IpAddr>>,
}

/// A call in progress; dropped when it is done.
pub struct InFlight {
    _place: OwnedSemaphorePermit,
    of: Arc<Shares<TokenId>>,
    token: Mutex<Option<(TokenId, Share<TokenId>)>>,
    bytes: Arc<Shares<TokenId>>,
    held: Mutex<Vec<Share<TokenId>>>,
}

/// The bytes of an answer that was not read yet. An extension of the response, for its connection.
#[derive(Clone)]
pub struct AnswerShare(Arc<Mutex<Share<TokenId>>>);

impl AnswerShare {
    /// Takes this many bytes, or all that are left: they count until the part is dropped.
    pub fn split(&self, bytes: usize) -> Share<TokenId> {
        self.0.lock().split(bytes)
    }
}

/// A place among the listeners, and room for what it does not read; dropped when it listens no more.
pub struct ListenerPlace {
    _place: Share<TokenId>,
    _unread: Share<TokenId>,
}

impl InFlight {
    /// Counts the call as one of its token.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when the token has its share of all calls in progress.
    pub fn belongs_to(&self, token: TokenId) -> Result<(), CallRefusal> {
        let share = self.of.take(&[token], 1);
        let share = share.inspect_err(|_| meter::refused(Refused::InFlight))?;
        *self.token.lock() = Some((token, share));
        Ok(())
    }

    /// Reserves room for this many more bytes of the call's body, until the call is done.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when the bodies of all calls would be too much, or the token's have their share.
    pub fn hold(&self, bytes: usize) -> Result<(), CallRefusal> {
        let token = self.token.lock().as_ref().map(|(token, _)| *token);
        let mut more = self.bytes.take(token.as_slice(), bytes).map_err(|_| {
            meter::refused(Refused::Bytes);
            busy(
                "the requests in progress, in total or with this token, exceed the memory limit; try again",
            )
        })?;
        let mut held = self.held.lock();
        // A body in very many parts is one share anyway.
        if !held.last_mut().is_some_and(|held| held.merge(&mut more)) {
            held.push(more);
        }
        Ok(())
    }
}

impl Admission {
    /// A gate on the machine's clock.
    pub fn new(terms: &AdmissionLimits) -> Self {
        Self::on(terms, &MonotonicTicks::monotonic())
    }

    fn on(terms: &AdmissionLimits, ticks: &MonotonicTicks) -> Self {
        let permits = terms.max_in_flight.min(Semaphore::MAX_PERMITS);
        Self {
            limits: *terms,
            in_flight: Arc::new(Semaphore::new(permits)),
            in_flight_of: Shares::new(permits),
            bytes: Shares::new(terms.max_in_flight_bytes),
            unread: Shares::new(terms.max_unread_bytes),
            listeners: Shares::new(terms.max_listeners),
            tokens: Limiter::new(terms.per_token, ticks),
            addresses: Limiter::new(terms.per_address, ticks),
        }
    }

    /// The gate of operators: with rates and limits like these, and counts of its own, so that clients keep no operator out,
    /// nor operators clients.
    pub fn for_operators(&self) -> Self {
        let limits = self.limits;
        Self::new(&AdmissionLimits {
            max_in_flight: limits.max_in_flight.min(MAX_OPERATORS_IN_FLIGHT),
            ..limits
        })
    }

    /// Takes a place among the calls in progress.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when there is none.
    pub fn enter(&self) -> Result<InFlight, CallRefusal> {
        let place = Arc::clone(&self.in_flight)
            .try_acquire_owned()
            .map_err(|_| {
                meter::refused(Refused::InFlight);
                busy("too many requests are in progress; try again")
            })?;
        Ok(InFlight {
            _place: place,
            of: Arc::clone(&self.in_flight_of),
            token: Mutex::default(),
            bytes: Arc::clone(&self.bytes),
            held: Mutex::default(),
        })
    }

    /// How many more calls could be in progress now.
    #[cfg(test)]
    pub fn free_places(&self) -> usize {
        self.in_flight.available_permits()
    }

    /// Whether a token may ask for more, as far as it has read what it was answered.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when it has its share of all that is unread.
    pub fn may_ask(&self, token: TokenId) -> Result<(), CallRefusal> {
        let nothing_more = self.unread.take(&[token], 0);
        nothing_more.map(drop).map_err(|_| unread_fault().into())
    }

    /// Counts a response of this size for its token, until it is read. A completed call (`done`) is answered in any
    /// case.
    ///
    /// # Errors
    /// As [`Admission::may_ask`].
    pub fn answer(&self, token: TokenId, bytes: usize, done: bool) -> Result<AnswerShare, Fault> {
        let (token, bytes) = ([token], bytes.saturating_add(ANSWER_OVERHEAD));
        let share = if done {
            self.unread.retake(&token, bytes)
        } else {
            self.unread
                .take(&token, bytes)
                .map_err(|_| unread_fault())?
        };
        Ok(AnswerShare(Arc::new(Mutex::new(share))))
    }

    /// Takes a place among the listeners to events.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when there is none, or what was not read leaves no room.
    pub fn listen(&self, token: TokenId) -> Result<ListenerPlace, CallRefusal> {
        let place = self.listeners.take(&[token], 1);
        let place = place.map_err(|_| {
            meter::refused(Refused::Listeners);
            busy("too many event listeners, in total or with this token; try again later")
        })?;
        let unread = self.unread.take(&[token], LISTENER_BYTES);
        Ok(ListenerPlace {
            _place: place,
            _unread: unread.map_err(|_| unread_fault())?,
        })
    }

    /// Counts a call of an address. IPv6 addresses of one /64 are one: a client has all of them.
    ///
    /// # Errors
    /// [`Class::Limited`] when they come too fast.
    pub fn address(&self, address: IpAddr) -> Result<(), CallRefusal> {
        let Some(limiter) = &self.addresses else {
            return Ok(());
        };
        limiter
            .check(&network(address))
            .map_err(|wait| limited("too many requests from this address", wait))
    }

    /// Counts a call of an address that had no known token once more, and heavily: guessing
    /// tokens has to be slow.
    pub fn unauthenticated(&self, address: IpAddr) {
        if let Some(limiter) = &self.addresses {
            let key = network(address);
            // What is left is taken, also when it is less.
            let _ = (0..PENALTY).try_for_each(|_| limiter.check(&key));
        }
    }

    /// Counts a call with a token.
    ///
    /// # Errors
    /// [`Class::Limited`] when they come too fast.
    pub fn token(&self, token: &TokenId) -> Result<(), CallRefusal> {
        let Some(limiter) = &self.tokens else {
            return Ok(());
        };
        limiter
            .check(token)
            .map_err(|wait| limited("too many requests with this token", wait))
    }
}

fn unread_fault() -> Fault {
    meter::refused(Refused::Bytes);
    busy("the unread responses to this token exceed the limit; read them and try again")
}

/// There is too much to do, and nothing is wrong.
fn busy(sentence: &str) -> Fault {
    Fault::unavailable(sentence).with_code(FaultCode::Busy { seconds: 1 })
}

fn limited(what: &str, wait: Duration) -> CallRefusal {
    meter::refused(Refused::Rate);
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    let seconds = seconds.max(1);
    CallRefusal {
        fault: Fault::new(
            Class::Limited,
            format!("{what}; try again in {seconds} seconds"),
        ),
        retry_after: Some(seconds),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const OFF: CallRate = CallRate {
        per_second: 0,
        burst: 0,
    };

    struct Gate {
        admission: Admission,
        now_ms: Arc<AtomicU64>,
    }

    fn gate(per_token: CallRate, per_address: CallRate) -> Gate {
        let now_ms = Arc::new(AtomicU64::new(1_000));
        let read = Arc::clone(&now_ms);
        let ticks = MonotonicTicks(Arc::new(move || {
            Duration::from_millis(read.load(Ordering::SeqCst))
        }));
        let terms = AdmissionLimits {
            max_in_flight: 2,
            max_in_flight_bytes: 100,
            max_unread_bytes: 64 * ANSWER_OVERHEAD,
            max_listeners: 8,
            per_token,
            per_address,
        };
        Gate {
            admission: Admission::on(&terms, &ticks),
            now_ms,
        }
    }

    fn token(last: u8) -> TokenId {
        TokenId::from_bytes([last; 16])
    }

    #[test]
    fn places__should_be_counted_and_given_back() {
        let gate = gate(OFF, OFF).admission;
        let (one, _two) = (gate.enter().expect("one"), gate.enter().expect("two"));
        let refusal = gate.enter().err().expect("full");
        assert_eq!(*refusal.fault.class(), Class::Unavailable);
        assert_eq!(refusal.retry_after, Some(1));
        drop(one);
        gate.enter().expect("a place was given back");
    }

    #[test]
    fn refusals__should_be_counted_by_what_there_was_too_much_of() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let _guard = ::metrics::set_default_local_recorder(&recorder);
        let slow = CallRate {
            per_second: 1,
            burst: 1,
        };
        let gate = Admission::new(&AdmissionLimits {
            max_in_flight: 1,
            max_in_flight_bytes: 10,
            max_unread_bytes: 0,
            max_listeners: 0,
            per_token: slow,
            per_address: OFF,
        });
        gate.token(&token(1)).expect("the first");
        gate.token(&token(1)).expect_err("too fast");
        let call = gate.enter().expect("the first");
        gate.enter().map(drop).expect_err("too many");
        call.hold(11).expect_err("too much");
        gate.listen(token(1))
            .map(drop)
            .expect_err("none may listen");
        let shown = recorder.handle().render();
        for why in ["rate", "in_flight", "bytes", "listeners"] {
            let line = format!("covault_refused_total{{why=\"{why}\"}} 1");
            assert!(shown.lines().any(|other| other == line), "{line}: {shown}");
        }
    }

    #[test]
    fn places__should_be_shared_between_tokens() {
        let gate = gate(OFF, OFF).admission;
        let (one, two) = (gate.enter().expect("one"), gate.enter().expect("two"));
        one.belongs_to(token(1)).expect("free");
        two.belongs_to(token(1)).expect("no more than is free");
        drop(two);
        let two = gate.enter().expect("two");
        two.belongs_to(token(2)).expect("the other one");
        drop((one, two));
        let terms = AdmissionLimits {
            max_in_flight: 3,
            max_in_flight_bytes: 0,
            max_unread_bytes: 0,
            max_listeners: 8,
            per_token: OFF,
            per_address: OFF,
        };
        let gate = Admission::new(&terms);
        let calls: Vec<_> = (0..3).map(|_| gate.enter().expect("free")).collect();
        let outcome = |call: usize, last| calls[call].belongs_to(token(last));
        outcome(0, 1).expect("free");
        outcome(1, 1).expect("free");
        let refusal = outcome(2, 1).expect_err("the last is for others");
        assert_eq!(*refusal.fault.class(), Class::Unavailable);
        outcome(2, 2).expect("for this one");
    }

    #[test]
    fn answers__should_count_for_their_token_until_they_are_read() {
        let gate = gate(OFF, OFF).admission;
        let answer =
            |last, kib: usize, done| gate.answer(token(last), (kib - 1) * ANSWER_OVERHEAD, done);
        let first = answer(1, 40, false).expect("free");
        gate.may_ask(token(1)).expect_err("it reads nothing");
        let fault = answer(1, 1, false).err().expect("it has its share");
        assert_eq!(*fault.class(), Class::Unavailable);
        gate.may_ask(token(2)).expect("another");
        answer(2, 20, false).expect("another");
        answer(1, 30, true).expect("what was done is answered");
        let part = first.split(10 * ANSWER_OVERHEAD);
        drop(first);
        answer(1, 40, false).expect("most of it was read");
        drop(part);
        assert_eq!(gate.unread.held(&token(1)), 0);
    }

    #[test]
    fn refusal__should_say_when_there_is_less_to_do() {
        let busy = |seconds| Fault::unavailable("busy").with_code(FaultCode::Busy { seconds });
        let after = |fault| CallRefusal::from(fault).retry_after;
        assert_eq!(after(busy(17)), Some(17));
        assert_eq!(after(busy(0)), Some(1));
        assert_eq!(after(Fault::unavailable("away")), Some(1));
        assert_eq!(after(Fault::new(Class::Invalid, "no")), None);
    }

    #[test]
    fn bytes__should_be_counted_over_all_calls_and_given_back() {
        let gate = gate(OFF, OFF).admission;
        let (one, two) = (gate.enter().expect("one"), gate.enter().expect("two"));
        one.hold(40).expect("fits");
        one.hold(40).expect("fits");
        two.hold(20).expect("fits");
        let refusal = two.hold(1).expect_err("full");
        assert_eq!(*refusal.fault.class(), Class::Unavailable);
        assert_eq!(refusal.retry_after, Some(1));
        drop(one);
        two.hold(80).expect("given back, all of it");
        two.hold(1).expect_err("and no more");
    }

    #[test]
    fn bodies__should_leave_room_for_other_tokens() {
        let terms = AdmissionLimits {
            max_in_flight: 100,
            max_in_flight_bytes: 100,
            max_unread_bytes: 0,
            max_listeners: 8,
            per_token: OFF,
            per_address: OFF,
        };
        let gate = Admission::new(&terms);
        let call = |last| {
            let call = gate.enter().expect("a place");
            call.belongs_to(token(last)).expect("a place");
            call
        };
        // One client sends bodies that never end, on as many connections as it likes.
        let flood: Vec<_> = (0..10).map(|_| call(1)).collect();
        let parts = flood
            .iter()
            .map(|call| (0..50).filter(|_| call.hold(2).is_ok()).count());
        let taken: usize = parts.sum();
        assert!(
            (20..25).contains(&taken),
            "nearly half of a hundred: {taken} times 2"
        );
        call(2).hold(20).expect("another client's");
        drop(flood);
        call(1).hold(40).expect("given back");
    }

    #[test]
    fn token__should_have_its_burst_and_then_its_rate() {
        let rate = CallRate {
            per_second: 2,
            burst: 3,
        };
        let gate = gate(rate, OFF);
        let call = |last| gate.admission.token(&token(last));
        for _ in 0..3 {
            call(1).expect("burst");
        }
        let refusal = call(1).expect_err("too fast");
        assert_eq!(*refusal.fault.class(), Class::Limited);
        assert_eq!(refusal.retry_after, Some(1));
        // Another token has its own.
        call(2).expect("another");
        gate.now_ms.fetch_add(500, Ordering::SeqCst);
        call(1).expect("half a second later");
        call(1).expect_err("one only");
    }

    #[test]
    fn wait__should_be_told_in_whole_seconds() {
        for (ms, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (59_999, 60)] {
            let refusal = limited("too many", Duration::from_millis(ms));
            assert_eq!(refusal.retry_after, Some(seconds), "{ms}");
        }
    }

    #[test]
    fn unauthenticated_calls__should_weigh_more() {
        let rate = CallRate {
            per_second: 1,
            burst: 20,
        };
        let gate = gate(OFF, rate).admission;
        let address = "192.0.2.1".parse().expect("address");
        let mut calls = 0;
        while gate.address(address).is_ok() {
            gate.unauthenticated(address);
            calls += 1;
        }
        assert_eq!(calls, 2);
        gate.address("192.0.2.2".parse().expect("address"))
            .expect("another address");
    }

    #[test]
    fn nothing__should_be_limited_when_rates_are_off() {
        let gate = gate(OFF, OFF).admission;
        for _ in 0..10_000 {
            gate.token(&token(1)).expect("off");
            gate.address("192.0.2.1".parse().expect("address"))
                .expect("off");
        }
    }
}
