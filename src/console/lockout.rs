//! Failed attempts to sign in or to use a link: after a few, the address must wait a quarter of an hour with
//! that passkey.
//!
//! It is counted for passkey and address together: who knows a credential id, which is no secret, must not be able to
//! lock its person out; and for one that nobody has alike, so that nobody learns which have accounts. A process counts for
//! itself; what is tried is a signature of a key that cannot be guessed, or 256 random bits.

use std::{collections::HashMap, net::IpAddr};

use covault_core::fault::{Class, Fault};
use metrics::{counter, describe_counter};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::api::{address::network, admission::CallRefusal};

/// Tries that failed, and those that were not made because too many had.
const WRONG_TRIES: &str = "covault_console_wrong_tries_total";

/// Tells the recorder what the number means.
pub fn describe() {
    describe_counter!(
        WRONG_TRIES,
        "Wrong tries to sign in or enrol on the console or a signer node's page, by what was tried with (passkey, link) \
         and outcome (wrong; waits: refused after too many)"
    );
}

/// Tries with one passkey or link that may fail.
const TRIES: u32 = 5;
/// How long one waits after that, and how long a wrong try counts, in milliseconds.
const WAIT_MS: u64 = 15 * 60 * 1000;
/// Most places that are remembered; those that were wrong least lately are forgotten first.
const REMEMBERED: usize = 10_000;

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TriedSecret {
    /// To sign in with a passkey, by SHA-256 of its credential id: anyone who has it, if anyone.
    Passkey([u8; 32]),
    /// To enrol with a link, by SHA-256 of its secret: nobody keeps others at the same address from theirs with a wrong one.
    Link([u8; 32]),
}

impl TriedSecret {
    /// To sign in with the passkey of a credential id.
    pub fn passkey(credential_id: &[u8]) -> Self {
        Self::Passkey(Sha256::digest(credential_id).into())
    }

    /// To enrol with the link of a secret.
    pub fn link(secret: &str) -> Self {
        Self::Link(Sha256::digest(secret).into())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Passkey(_) => "passkey",
            Self::Link(_) => "link",
        }
    }
}

/// What is tried, and from where, as far as that is known.
type LockoutKey = (TriedSecret, Option<IpAddr>);

/// What was tried.
#[derive(Default)]
pub struct LockOut(Mutex<HashMap<LockoutKey, WrongTries>>);

struct WrongTries {
    count: u32,
    last_ms: u64,
}

fn place(tried: TriedSecret, address: Option<IpAddr>) -> LockoutKey {
    (tried, address.map(network))
}

impl LockOut {
    /// Whether one may try.
    ///
    /// # Errors
    /// [`Class::Limited`] after too many wrong tries.
    pub fn check(
        &self,
        tried: TriedSecret,
        address: Option<IpAddr>,
        now_ms: u64,
    ) -> Result<(), CallRefusal> {
        let mut all = self.0.lock();
        let place = place(tried, address);
        match all.get(&place) {
            Some(tries) if is_over(tries, now_ms) => {
                all.remove(&place);
                Ok(())
            }
            Some(tries) if tries.count >= TRIES => {
                counter!(WRONG_TRIES, "with" => tried.name(), "outcome" => "waits").increment(1);
                let until_ms = tries.last_ms.saturating_add(WAIT_MS);
                Err(CallRefusal {
                    fault: Fault::new(Class::Limited, "too many wrong tries: wait 15 minutes"),
                    retry_after: Some(until_ms.saturating_sub(now_ms).div_ceil(1000)),
                })
            }
            _ => Ok(()),
        }
    }

    /// A wrong try.
    pub fn wrong(&self, tried: TriedSecret, address: Option<IpAddr>, now_ms: u64) {
        counter!(WRONG_TRIES, "with" => tried.name(), "outcome" => "wrong").increment(1);
        let mut all = self.0.lock();
        let place = place(tried, address);
        if all.len() >= REMEMBERED && !all.contains_key(&place) {
            all.retain(|_, tries| !is_over(tries, now_ms));
            if all.len() >= REMEMBERED {
                let oldest = all.iter().min_by_key(|(_, tries)| tries.last_ms);
                if let Some(oldest) = oldest.map(|(place, _)| *place) {
                    all.remove(&oldest);
                }
            }
        }
        let tries = all.entry(place).or_insert(WrongTries {
            count: 0,
            last_ms: now_ms,
        });
        tries.count = tries.count.saturating_add(1);
        tries.last_ms = now_ms;
    }

    /// A right one: what was wrong before no longer counts.
    pub fn right(&self, tried: TriedSecret, address: Option<IpAddr>) {
        self.0.lock().remove(&place(tried, address));
    }
}

fn is_over(tries: &WrongTries, now_ms: u64) -> bool {
    now_ms.saturating_sub(tries.last_ms) >= WAIT_MS
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn lock_out__should_come_after_five_for_passkey_and_address_and_end() {
        let lock = LockOut::default();
        let [me, other] = [1, 2].map(|it| TriedSecret::passkey(&[it; 16]));
        let [here, there] = ["192.0.2.1", "192.0.2.2"].map(|it| Some(it.parse().unwrap()));
        for now in 0..5 {
            assert!(lock.check(me, here, now).is_ok());
            lock.wrong(me, here, now);
        }
        let refusal = lock.check(me, here, 5).unwrap_err();
        assert_eq!(refusal.retry_after, Some(WAIT_MS / 1000));
        assert!(lock.check(me, there, 5).is_ok(), "its person is elsewhere");
        assert!(lock.check(other, here, 5).is_ok());
        assert!(lock.check(me, here, 4 + WAIT_MS - 1).is_err());
        assert!(lock.check(me, here, 4 + WAIT_MS).is_ok());
        for now in 0..4 {
            lock.wrong(me, here, now);
        }
        lock.right(me, here);
        lock.wrong(me, here, 5);
        assert!(lock.check(me, here, 6).is_ok());
    }

    #[test]
    fn lock_out__should_hold_no_more_than_it_may_and_take_a_network_for_one() {
        let lock = LockOut::default();
        for number in 0..u32::try_from(REMEMBERED + 10).unwrap() {
            let address = IpAddr::from(number.to_be_bytes());
            lock.wrong(TriedSecret::link(""), Some(address), u64::from(number));
        }
        assert_eq!(lock.0.lock().len(), REMEMBERED);
        for end in 1..=TRIES {
            let address = format!("2001:db8::{end:x}").parse().unwrap();
            lock.wrong(TriedSecret::link("a"), Some(address), 20_000);
        }
        let address = Some("2001:db8::ffff".parse().unwrap());
        assert!(lock.check(TriedSecret::link("a"), address, 20_001).is_err());
        assert!(lock.check(TriedSecret::link("b"), address, 20_001).is_ok());
    }
}
