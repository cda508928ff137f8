//! Randomness: the entropy port as the generator that libraries take, and a node's hedge against a
//! port that fails.
//!
//! Who gets two signature shares made with one nonce has the signer's share of the key. So no session of a node draws
//! from the system alone: a generator that repeats itself, stands still or is known to an attacker then still gives
//! unpredictable bytes, and never the same ones twice.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use covault_core::{
    ids::SessionId,
    port::{Clock, Entropy},
};
use hkdf::Hkdf;
use rand_core_06::{CryptoRng, Error, RngCore};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::shares::ShareEpoch;

/// Draws from an [`Entropy`].
pub(crate) struct EntropyRng<'a>(pub &'a dyn Entropy);

impl RngCore for EntropyRng<'_> {
    fn next_u32(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.0.fill(&mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.0.fill(bytes);
        Ok(())
    }
}

// The port promises randomness fit for keys.
impl CryptoRng for EntropyRng<'_> {}

/// The most bytes that one HKDF-SHA-256 gives (RFC 5869).
const MAX_DRAW_BYTES: usize = 255 * 32;

/// A node's randomness, hedged in the manner of RFC 8937: HKDF over the system's bytes and a secret of
/// the node, bound to what they are drawn for, to the start of the node that draws, a count of the
/// draws since, and the time. Start and count together never come twice while the claims file is there
/// and the newest, so neither do the bytes. The number of the start is durable: the claims file counts
/// its openings, on disk before anything is drawn. A draw costs no write. Never printed; the secret is
/// zeroized on drop.
pub(crate) struct EntropyHedge {
    system: Arc<dyn Entropy>,
    clock: Arc<dyn Clock>,
    secret: Zeroizing<[u8; 32]>,
    start: u64,
    drawn: AtomicU64,
    /// In simulations only: the system's bytes unmixed, to see that the oracle notices.
    #[cfg(feature = "simulation")]
    off: bool,
}

crate::secrets::secret!(EntropyHedge { secret });

impl EntropyHedge {
    /// `secret` is the node's own and good for nothing else; `start` is above that of every start
    /// before.
    pub(crate) fn new(
        system: Arc<dyn Entropy>,
        clock: Arc<dyn Clock>,
        secret: Zeroizing<[u8; 32]>,
        start: u64,
    ) -> Self {
        Self {
            system,
            clock,
            secret,
            start,
            drawn: AtomicU64::new(0),
            #[cfg(feature = "simulation")]
            off: false,
        }
    }

    /// With another secret, or without any hedge.
    #[cfg(feature = "simulation")]
    pub(crate) fn simulated(self, secret: Option<[u8; 32]>) -> Self {
        Self {
            off: secret.is_none(),
            secret: secret.map_or(self.secret, Zeroizing::new),
            ..self
        }
    }

    /// For one attempt of a session.
    pub(crate) fn session(&self, (session, attempt): (SessionId, u32)) -> HedgedDraw<'_> {
        let context = [&b"session"[..], session.as_bytes(), &attempt.to_be_bytes()].concat();
        HedgedDraw {
            hedge: self,
            context,
        }
    }

    /// For nonces that are made ahead for these shares.
    pub(crate) fn preprocess(&self, of: &ShareEpoch) -> HedgedDraw<'_> {
        let context = [&b"ahead"[..], &of.epoch.to_be_bytes(), &of.root].concat();
        HedgedDraw {
            hedge: self,
            context,
        }
    }

    fn draw(&self, context: &[u8], bytes: &mut [u8]) {
        #[cfg(feature = "simulation")]
        if self.off {
            return self.system.fill(bytes);
        }
        for piece in bytes.chunks_mut(MAX_DRAW_BYTES) {
            let mut system = Zeroizing::new([0; 64]);
            self.system.fill(system.as_mut_slice());
            let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
            let (start, drawn) = (self.start.to_be_bytes(), drawn.to_be_bytes());
            let now_ms = self.clock.now_ms().to_be_bytes();
            // All of fixed length but the last.
            let info: [&[u8]; 5] = [b"covault/hedge/1", &start, &drawn, &now_ms, context];
            let hkdf = Hkdf::<Sha256>::new(Some(self.secret.as_slice()), system.as_slice());
            if hkdf.expand_multi_info(&info, piece).is_err() {
                // Never: no piece is too long.
                self.system.fill(piece);
            }
        }
        #[cfg(feature = "simulation")]
        crate::simulated::drawn(bytes);
    }
}

impl Entropy for EntropyHedge {
    fn fill(&self, bytes: &mut [u8]) {
        self.draw(b"other", bytes);
    }
}

/// A [`EntropyHedge`] that draws for one purpose.
pub(crate) struct HedgedDraw<'a> {
    hedge: &'a EntropyHedge,
    context: Vec<u8>,
}

crate::secrets::secret!(HedgedDraw<'_>);

impl Entropy for HedgedDraw<'_> {
    fn fill(&self, bytes: &mut [u8]) {
        self.hedge.draw(&self.context, bytes);
    }
}

/// Has the generator of this thread, from which the dkls23 crate draws, begin again from the operating
/// system: what it holds in memory is in every copy of a machine that was resumed. False when the
/// operating system gives nothing.
#[expect(
    clippy::disallowed_methods,
    reason = "the crate draws from it whatever we do"
)]
pub(crate) fn renew_thread_generator() -> bool {
    rand::rng().reseed().is_ok()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::collections::HashSet;

    use covault_core::{
        derive::KeyPath,
        scheme::Scheme,
        testing::{ConstantEntropy, ManualClock},
    };

    use super::*;
    use crate::{
        backend::{KeygenSetup, SignSetup, Signer, SignerIndex, StepOutput, of},
        test_support::SystemEntropy,
    };

    fn hedge(secret: u8, start: u64) -> EntropyHedge {
        let secret = Zeroizing::new([secret; 32]);
        EntropyHedge::new(
            Arc::new(ConstantEntropy(7)),
            Arc::new(ManualClock::at(1)),
            secret,
            start,
        )
    }

    fn bytes(entropy: &dyn Entropy) -> [u8; 32] {
        let mut bytes = [0; 32];
        entropy.fill(&mut bytes);
        bytes
    }

    fn session(number: u64) -> (SessionId, u32) {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        (SessionId::from_bytes(id), 0)
    }

    #[test]
    fn hedge__should_give_other_bytes_for_another_secret_start_draw_and_purpose() {
        let of = |epoch, root| ShareEpoch { root, epoch };
        let (one, first) = (hedge(1, 1), session(1));
        let mut seen = HashSet::from([
            bytes(&one),
            bytes(&one),
            bytes(&hedge(2, 1)),
            bytes(&hedge(1, 2)),
            bytes(&hedge(1, 1).session(first)),
            bytes(&hedge(1, 1).session((first.0, 1))),
            bytes(&hedge(1, 1).session(session(2))),
            bytes(&hedge(1, 1).preprocess(&of(0, vec![1]))),
            bytes(&hedge(1, 1).preprocess(&of(1, vec![1]))),
            bytes(&hedge(1, 1).preprocess(&of(0, vec![2]))),
        ]);
        assert_eq!(seen.len(), 10);
        // Only when all of these come again, and the system's bytes too.
        assert!(!seen.insert(bytes(&hedge(1, 1))));
        let system = EntropyHedge::new(
            Arc::new(SystemEntropy),
            Arc::new(ManualClock::at(1)),
            Zeroizing::new([1; 32]),
            1,
        );
        assert!(seen.insert(bytes(&system)));
    }

    #[test]
    fn hedge__should_fill_any_length_without_repeating() {
        let mut long = vec![0; 3 * MAX_DRAW_BYTES + 5];
        hedge(1, 1).fill(&mut long);
        let blocks: HashSet<&[u8]> = long.chunks_exact(16).collect();
        assert_eq!(blocks.len(), long.len() / 16);
        hedge(1, 1).fill(&mut []);
    }

    /// A party's share of a 2-of-2 key.
    fn signer() -> Arc<dyn Signer> {
        let backend = of(Scheme::FrostEd25519).unwrap();
        let mut parties: Vec<_> = (1..=2)
            .map(|me| {
                let setup = KeygenSetup {
                    context: [9; 32],
                    me,
                    threshold: 2,
                    parties: 2,
                };
                backend.keygen(setup).unwrap()
            })
            .collect();
        let mut queue = Vec::new();
        for (from, party) in (1..).zip(&mut parties) {
            let turn = party.start(&SystemEntropy).unwrap();
            queue.extend(turn.send.into_iter().map(|message| (from, message)));
        }
        let mut made = None;
        while let Some((from, message)) = queue.pop() {
            let party = &mut parties[usize::from(message.to) - 1];
            let turn = party
                .receive(from, message.round, message.body)
                .ok()
                .unwrap();
            queue.extend(turn.send.into_iter().map(|sent| (message.to, sent)));
            made = turn.done.filter(|_| message.to == 1).or(made);
        }
        backend.open(&made.unwrap()).unwrap()
    }

    fn commitments(signer: &Arc<dyn Signer>, number: u64, entropy: &dyn Entropy) -> Vec<u8> {
        let mut context = [0; 32];
        context[..8].copy_from_slice(&number.to_be_bytes());
        let signers: Vec<SignerIndex> = vec![1, 2];
        let setup = SignSetup {
            context,
            signers,
            path: KeyPath::new(vec![0, 1]).unwrap(),
            message: b"a message".to_vec(),
        };
        let turn: StepOutput<_> = signer.sign(setup).unwrap().start(entropy).unwrap();
        turn.send[0].body.to_vec()
    }

    #[test]
    fn frost__should_use_no_nonce_twice_in_10_000_sessions_with_a_constant_generator() {
        let signer = signer();
        // Without the hedge every session has the same nonces: two signatures give the share away.
        assert_eq!(
            commitments(&signer, 1, &ConstantEntropy(7)),
            commitments(&signer, 2, &ConstantEntropy(7))
        );
        let mut seen = HashSet::new();
        // Five starts, the same sessions in each, and half of the nonces made ahead.
        for start in 1..=5 {
            let hedge = hedge(1, start);
            let of = ShareEpoch {
                root: vec![5; 32],
                epoch: 0,
            };
            for number in 0..1_000 {
                let inside = commitments(&signer, number, &hedge.session(session(number)));
                assert!(seen.insert(inside), "session {number} of start {start}");
                let preprocess = signer
                    .make_nonce(&hedge.preprocess(&of))
                    .unwrap()
                    .ok()
                    .unwrap();
                assert!(
                    seen.insert(preprocess.commitments),
                    "{number} of start {start}"
                );
            }
        }
        assert_eq!(seen.len(), 10_000);
    }
}
