//! The fuzz targets in short: the same entry points, fed with what the honest say, changed at random,
//! and with noise. `just fuzz` runs them for as long as one likes, guided by coverage.
//!
//! `COVAULT_FUZZ_INPUTS` says how many inputs each target gets.

#![allow(non_snake_case, missing_docs)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods
)]

use covault_core::scheme::Scheme;
use covault_mpc::fuzz::{self, Finding};
use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::StdRng};

/// Changes an input as a fuzzer would.
fn mutate(input: &mut Vec<u8>, dice: &mut StdRng) {
    for _ in 0..dice.random_range(1..4) {
        let at = dice.random_range(0..input.len().max(1));
        match dice.random_range(0..6) {
            0 => input.truncate(at),
            1 => input.extend_from_slice(&[0xff; 9]),
            2 if at < input.len() => {
                input.remove(at);
            }
            3 => input.insert(at.min(input.len()), dice.random()),
            // Lengths and tags like to be at the extremes.
            4 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff][dice.random_range(0..5)],
            _ if at < input.len() => input[at] ^= 1 << dice.random_range(0..8),
            _ => {}
        }
    }
}

fn inputs(default: u32) -> u32 {
    std::env::var("COVAULT_FUZZ_INPUTS").map_or(default, |text| text.parse().unwrap())
}

/// Feeds a target: the samples themselves, then each changed in many ways, then noise.
fn feed(count: u32, samples: &[Vec<u8>], target: impl Fn(&[u8]) -> Result<(), Finding>) {
    let mut dice = StdRng::seed_from_u64(3);
    for sample in samples {
        target(sample).unwrap();
    }
    for number in 0..count {
        let mut input = if samples.is_empty() || number % 4 == 3 {
            let mut noise = vec![0; dice.random_range(0..400)];
            dice.fill_bytes(&mut noise);
            noise
        } else {
            samples[dice.random_range(0..samples.len())].clone()
        };
        mutate(&mut input, &mut dice);
        if let Err(finding) = target(&input) {
            panic!("{finding}: {}", hex::encode(input));
        }
    }
}

/// What the honest say in key generation and in signing, as the targets take it.
fn rounds(scheme: Scheme) -> [Vec<Vec<u8>>; 2] {
    let (keygen, sign) = fuzz::samples(scheme).unwrap();
    assert!(keygen.len() >= 4 && sign.len() >= 2);
    [("keygen", keygen), ("sign", sign)].map(|(protocol, said)| {
        let inputs: Vec<Vec<u8>> = said
            .into_iter()
            .map(|(round, mut body)| {
                body.insert(0, u8::try_from(round - 1).unwrap());
                body
            })
            .collect();
        keep(&format!("{}_{protocol}", scheme_name(scheme)), &inputs);
        inputs
    })
}

fn scheme_name(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::FrostEd25519 => "frost",
        Scheme::Dkls23 => "dkls23",
        Scheme::Cggmp24 => "cggmp24",
    }
}

/// Writes the inputs to begin with where `COVAULT_FUZZ_SEEDS` says, for the fuzzer.
fn keep(target: &str, inputs: &[Vec<u8>]) {
    let Some(folder) = std::env::var_os("COVAULT_FUZZ_SEEDS") else {
        return;
    };
    let folder = std::path::Path::new(&folder).join(target);
    std::fs::create_dir_all(&folder).unwrap();
    for (number, input) in inputs.iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number}")), input).unwrap();
    }
}

#[test]
fn fuzz__should_find_nothing_in_envelopes() {
    // Version, kind, no seal, and zeros; once with all kinds.
    let samples: Vec<Vec<u8>> = (0..8)
        .map(|kind| [&[0, 1, kind, kind & 1][..], &[0; 200]].concat())
        .collect();
    keep("envelope", &samples);
    feed(inputs(5_000), &samples, fuzz::envelope);
}

#[test]
fn fuzz__should_find_nothing_in_orders_replies_announcements_and_shares() {
    let none: Vec<[u8; 32]> = Vec::new();
    let body = |which: u8, bytes: Vec<u8>| [vec![which], bytes].concat();
    let samples = [
        body(2, bcs::to_bytes(&(3_u8, &none, &none, "a reason")).unwrap()),
        body(2, [&[0, 1, 1][..], &[7; 64]].concat()),
        body(
            3,
            bcs::to_bytes(&("a name", 1_u64, false, [0_u8; 16], "0.1", 1_u32, 0_u8)).unwrap(),
        ),
        body(0, vec![0; 600]),
        body(1, vec![0; 200]),
        body(4, vec![0; 300]),
    ];
    keep("messages", &samples);
    feed(inputs(20_000), &samples, fuzz::messages);
}

#[test]
fn fuzz__should_find_nothing_in_frost_key_generation() {
    let scheme = Scheme::FrostEd25519;
    let [samples, _] = rounds(scheme);
    feed(inputs(200), &samples, |data| fuzz::keygen(scheme, data));
    feed(inputs(100), &[], |data| fuzz::sealed_keygen(scheme, data));
}

#[test]
fn fuzz__should_find_nothing_in_frost_signing() {
    let scheme = Scheme::FrostEd25519;
    let [_, samples] = rounds(scheme);
    feed(inputs(300), &samples, |data| fuzz::sign(scheme, data));
}

#[test]
fn fuzz__should_find_nothing_in_dkls23_key_generation() {
    let scheme = Scheme::Dkls23;
    let [samples, _] = rounds(scheme);
    feed(inputs(4), &samples, |data| fuzz::keygen(scheme, data));
}

#[test]
fn fuzz__should_find_nothing_in_dkls23_signing() {
    let scheme = Scheme::Dkls23;
    let [_, samples] = rounds(scheme);
    feed(inputs(60), &samples, |data| fuzz::sign(scheme, data));
}
