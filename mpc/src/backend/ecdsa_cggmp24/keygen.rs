//! The key generation session.

use cggmp24::{
    ExecutionId, KeyShare as Share, key_refresh::msg as aux, keygen::msg::threshold as core,
    security_level::SecurityLevel as _,
};
use covault_core::{derive::RootKey, signature::Curve as RootCurve};
use rand_chacha_03::ChaCha20Rng;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::{
    MAX_SHARE, SHARE_VERSION, Secp256k1, SecurityLevel128,
    machine::{ThreadChannel, ThreadedSession, WireFormat, drive},
    place, read_primes,
};
use crate::backend::{Abort, KeyShare, KeygenSetup, PrimeSource, Session, SignerIndex};

pub(super) type CoreMsg = core::Msg<Secp256k1, SecurityLevel128, Sha256>;
pub(super) type AuxMsg = aux::Msg<Sha256, SecurityLevel128>;

/// Rounds of the key, and of what follows.
pub(super) const CORE_LAST: u16 = 5;
const AUX_LAST: u16 = 9;
const OUTCOME: u16 = 10;
/// Bytes of the messages of one round: of proofs with 128 numbers of 3,072 bits each, and of others.
const MAX_PROOF: usize = 512 << 10;
const MAX_BODY: usize = 16 << 10;

fn core_round(msg: &CoreMsg) -> u16 {
    match msg {
        core::Msg::Round1(_) => 1,
        core::Msg::ReliabilityCheck(_) => 2,
        core::Msg::Round2Broad(_) => 3,
        core::Msg::Round2Uni(_) => 4,
        core::Msg::Round3(_) => CORE_LAST,
    }
}

fn aux_round(msg: &AuxMsg) -> u16 {
    match msg {
        aux::Msg::Round1(_) => 6,
        aux::Msg::ReliabilityCheck(_) => 7,
        aux::Msg::Round2(_) => 8,
        aux::Msg::Round3(_) => AUX_LAST,
    }
}

/// The crate refuses a modulus that is too short. One that is too long would keep us busy for
/// hours.
pub(super) fn aux_fits(msg: &AuxMsg) -> bool {
    let most = u64::from(SecurityLevel128::RSA_PRIME_BITLEN) * 2;
    match msg {
        aux::Msg::Round2(second) => [&second.N, &second.hat_N, &second.s, &second.t]
            .into_iter()
            .all(|number| number.significant_bits() <= most),
        _ => true,
    }
}

/// How the messages of the key look.
pub(super) fn core_wire(order: Vec<SignerIndex>) -> WireFormat<CoreMsg> {
    WireFormat {
        order,
        round: core_round,
        to_one: &[4],
        last: CORE_LAST,
        max_bytes: |_| MAX_BODY,
        collector: None,
    }
}

/// How the messages of what follows look.
pub(super) fn aux_wire(order: Vec<SignerIndex>) -> WireFormat<AuxMsg> {
    WireFormat {
        order,
        round: aux_round,
        to_one: &[AUX_LAST],
        last: AUX_LAST,
        max_bytes: |round| if round > 7 { MAX_PROOF } else { MAX_BODY },
        collector: None,
    }
}

pub(super) fn session(setup: KeygenSetup, primes: PrimeSource) -> impl Session<KeyShare> {
    let peers: Vec<SignerIndex> = (1..=setup.parties)
        .filter(|index| *index != setup.me)
        .collect();
    ThreadedSession::new(
        setup.me,
        peers,
        (1..=OUTCOME).collect(),
        move |rng, link| run(&setup, primes, rng, link),
    )
}

fn run(
    setup: &KeygenSetup,
    primes: PrimeSource,
    rng: &mut ChaCha20Rng,
    link: &mut ThreadChannel<KeyShare>,
) -> Result<KeyShare, Abort> {
    let (me, parties) = (place(setup.me), u16::from(setup.parties));
    let order: Vec<SignerIndex> = (1..=setup.parties).collect();
    let over = || Abort::new("the protocol ended early");
    let wire = core_wire(order.clone());
    let id = execution(b"covault/cggmp24/key", setup);
    let machine = cggmp24::keygen::<Secp256k1>(ExecutionId::new(&id), me, parties)
        .set_threshold(setup.threshold.into())
        .enforce_reliable_broadcast(true)
        .hd_wallet(true)
        .into_state_machine(rng);
    let key = drive(machine, &wire, link, |_, _| true)?.ok_or_else(over)?;

    // Not before the key is there: a run that fails early costs no primes.
    let primes = primes().map_err(|fault| Abort::new(fault.message()))?;
    let primes = read_primes(&primes)?;
    let wire = aux_wire(order);
    let id = execution(b"covault/cggmp24/aux", setup);
    let machine = cggmp24::aux_info_gen(ExecutionId::new(&id), me, parties, primes)
        .enforce_reliable_broadcast(true)
        .into_state_machine(rng);
    let aux = drive(machine, &wire, link, |_, msg| aux_fits(msg))?.ok_or_else(over)?;

    let share = Share::from_parts((key, aux))
        .map_err(|error| Abort::new(error.into_error().to_string()))?;
    let root = RootKey {
        curve: RootCurve::Secp256k1,
        public_key: share.core.shared_public_key.to_bytes(true).to_vec(),
        chain_code: share
            .core
            .chain_code
            .ok_or_else(|| Abort::new("the key has no chain code"))?,
    };
    let outcome = outcome(setup, &root, &share);
    link.send_to_all(OUTCOME, true, &outcome)?;
    link.confirm(OUTCOME, &outcome)?;
    let mut secret = Zeroizing::new(Vec::with_capacity(MAX_SHARE));
    secret.push(SHARE_VERSION);
    // By the crate's advice: its types change, its JSON does not.
    serde_json::to_writer(&mut *secret, &*share)
        .map_err(|_| Abort::new("a share could not be encoded"))?;
    Ok(KeyShare { root, secret })
}

/// Binds a protocol to this run.
fn execution(tag: &[u8], setup: &KeygenSetup) -> [u8; 32] {
    Sha256::new()
        .chain_update(tag)
        .chain_update([setup.threshold, setup.parties])
        .chain_update(setup.context)
        .finalize()
        .into()
}

/// Hash of everything that should be the same for all.
fn outcome(
    setup: &KeygenSetup,
    root: &RootKey,
    share: &Share<Secp256k1, SecurityLevel128>,
) -> [u8; 32] {
    let mut hash = Sha256::new()
        .chain_update(execution(b"covault/cggmp24/outcome", setup))
        .chain_update(&root.public_key)
        .chain_update(root.chain_code);
    for point in &share.core.public_shares {
        hash.update(point.to_bytes(true));
    }
    let params = share.aux.pedersen_params.iter();
    let numbers = params.flat_map(|params| [&params.hat_N, &params.s, &params.t]);
    for number in share.aux.N.iter().chain(numbers) {
        hash.update(Sha256::digest(number.to_str_radix(16)));
    }
    hash.finalize().into()
}
