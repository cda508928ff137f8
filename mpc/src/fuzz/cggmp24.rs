//! Targets for the second ECDSA backend, whose cryptography takes seconds. What a peer sends is read
//! by the backend's own decoder and put to the first check that it meets, without a run around it;
//! what is cheap enough is run too: the five rounds of the key itself.

use std::{panic, path::PathBuf, sync::OnceLock, thread};

use covault_core::scheme::Scheme;
use secrecy::SecretString;

use super::{
    Finding, finding,
    sessions::{self, FuzzInput, PEER},
};
use crate::{
    backend::{
        Abort, KeyShare,
        ecdsa_cggmp24::{decoder, read_primes},
    },
    shares::{ShareStore as _, age_file::AgeShareStore},
};

/// The name of the threads that the crate may panic on: its sessions' own, and ours.
const THREAD: &str = "cggmp24";

/// Lets the crate panic where the backend catches it. The fuzzer ends at every panic otherwise.
pub fn expect_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().name() != Some(THREAD) {
            before(info);
        }
    }));
}

/// Does it on a thread of that name. A panic that is not caught there is a finding.
fn apart<T: Send>(what: impl FnOnce() -> T + Send) -> Result<T, Finding> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(THREAD.to_owned());
        let thread = thread.spawn_scoped(scope, what);
        let thread = thread.map_err(|error| error.to_string())?;
        thread.join().map_err(|_| "a decoder panicked".to_owned())
    })
}

fn judge(outcome: Result<(), Abort>) -> Result<(), Finding> {
    match outcome {
        Err(abort) if abort.culprits != [PEER] => finding(format_args!("not named: {abort:?}")),
        _ => Ok(()),
    }
}

/// Rounds of the key, which are run, and all rounds, which are decoded.
const RUN: u8 = 5;
const KEYGEN: u8 = 9;
const SIGN: u8 = 6;

/// A hostile message in a key generation. The first byte chooses the round, and whether it is run.
///
/// # Errors
/// What should not have happened.
pub fn cggmp24_keygen(data: &[u8]) -> Result<(), Finding> {
    let Some((first, body)) = data.split_first() else {
        return Ok(());
    };
    let which = first % (RUN + KEYGEN);
    if which < RUN {
        let input = [&[which], body].concat();
        return sessions::keygen(Scheme::Cggmp24, &input);
    }
    let round = u16::from(which.saturating_sub(RUN)).saturating_add(1);
    judge(apart(|| decoder::keygen(round, body))?)
}

/// Shares that everybody knows, of parties 1 and 2.
fn shares() -> Result<Vec<KeyShare>, Finding> {
    let share = |party: u8| {
        let folder = format!("../tests/wire/node-v1-{party}");
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
        let passphrase = SecretString::from("for tests only");
        let records = AgeShareStore::open(&folder, &passphrase, 2)
            .and_then(|files| files.load_all())
            .map_err(|fault| format!("{fault:?}"))?;
        let mut records = records.into_iter();
        let record = records.find(|record| record.scheme == Scheme::Cggmp24);
        Ok(record.ok_or("no share of cggmp24")?.key)
    };
    [1, 2].into_iter().map(share).collect()
}

struct SigningTarget {
    decoder: decoder::SigningDecoder,
    /// The honest peer's of the first two rounds, which it sends before it has heard anything.
    said: Vec<Vec<u8>>,
}

fn signing() -> Result<&'static SigningTarget, Finding> {
    static MADE: OnceLock<Result<SigningTarget, Finding>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let shares = shares()?;
        let (context, said) = sessions::said_in_signing(Scheme::Cggmp24, &shares, false)?;
        if said.len() != 2 {
            return Err("another protocol".into());
        }
        let share = shares.first().ok_or("no share")?;
        let decoder =
            decoder::SigningDecoder::new(context, share).ok_or("a share cannot be read")?;
        Ok(SigningTarget { decoder, said })
    });
    made.as_ref().map_err(Clone::clone)
}

/// A hostile message in a signature, decoded; in the first two rounds its range proofs are verified.
/// The first byte chooses the round.
///
/// # Errors
/// What should not have happened.
pub fn cggmp24_sign(data: &[u8]) -> Result<(), Finding> {
    let Some((first, body)) = data.split_first() else {
        return Ok(());
    };
    let round = u16::from(first % SIGN).saturating_add(1);
    let signing = signing()?;
    let mut messages = Vec::new();
    // The honest half of what is proven.
    let other = match round {
        1 => signing.said.get(1).map(|body| (2, body.as_slice())),
        2 => signing.said.first().map(|body| (1, body.as_slice())),
        _ => None,
    };
    messages.extend(other);
    messages.push((round, body));
    judge(apart(|| signing.decoder.read(&messages))?)
}

/// A set of primes as it is stored.
pub(super) fn primes(body: &[u8]) {
    drop(apart(|| read_primes(body).is_ok()));
}

/// What the honest peer says, for both targets. Key generation only as far as it is run here.
///
/// # Errors
/// What should not have happened.
pub fn cggmp24_samples() -> Result<(Vec<FuzzInput>, Vec<FuzzInput>), Finding> {
    let mut keygen = sessions::said_until_it_ends(Scheme::Cggmp24)?;
    let decoded: Vec<FuzzInput> = keygen
        .iter()
        .filter_map(|sample| {
            let (first, body) = sample.split_first()?;
            Some([&[first.saturating_add(RUN)], body].concat())
        })
        .collect();
    keygen.extend(decoded);
    let (_, sign) = sessions::said_in_signing(Scheme::Cggmp24, &shares()?, true)?;
    let signing = signing()?;
    for (round, body) in (1..).zip(&sign) {
        let first = sign.first().ok_or("nothing was said")?;
        let read = apart(|| signing.decoder.read(&[(1, first), (round, body)]))?;
        if let Err(abort) = read {
            return Err(format!("an honest message is refused: {abort:?}"));
        }
    }
    let sign = (0..).zip(&sign);
    let sign = sign.map(|(round, body)| [&[round], body.as_slice()].concat());
    Ok((keygen, sign.collect()))
}
