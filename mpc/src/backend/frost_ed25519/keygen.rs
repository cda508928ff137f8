//! The key generation session.

use std::collections::BTreeMap;

use covault_core::{derive::RootKey, port::Entropy, signature::Curve};
use frost_ed25519::{
    Identifier,
    keys::dkg::{self, round1 as dkg1, round2 as dkg2},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::{Zeroize as _, Zeroizing};

use super::{SHARE_VERSION, StoredShare, abort, identifier};
use crate::{
    backend::{
        Abort, KeyShare, KeygenSetup, OutgoingMessage, SignerIndex, StepOutput,
        round_collector::{RoundCollector, RoundMessages, RoundProtocol, decode, encode},
    },
    entropy::EntropyRng,
};

#[derive(Serialize, Deserialize)]
struct KeygenRound1 {
    package: Vec<u8>,
    chain_commitment: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct KeygenRound3 {
    package: Vec<u8>,
    chain_part: [u8; 32],
    chain_salt: [u8; 32],
}

crate::secrets::secret_form!(KeygenRound3);

pub(super) struct FrostKeygen {
    setup: KeygenSetup,
    round_collector: RoundCollector,
    state: KeygenState,
    /// Everyone's first message, ours too.
    own: BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
}

crate::secrets::secret!(FrostKeygen);

enum KeygenState {
    New,
    Committed {
        secret: dkg1::SecretPackage,
        chain_part: [u8; 32],
        chain_salt: [u8; 32],
    },
    Echoed {
        secret: dkg1::SecretPackage,
        chain_part: [u8; 32],
        chain_salt: [u8; 32],
        echo: [u8; 32],
        packages: BTreeMap<Identifier, dkg1::Package>,
        chain_commitments: BTreeMap<SignerIndex, [u8; 32]>,
    },
    Shared {
        secret: Box<dkg2::SecretPackage>,
        chain_part: [u8; 32],
        echo: [u8; 32],
        packages: BTreeMap<Identifier, dkg1::Package>,
        chain_commitments: BTreeMap<SignerIndex, [u8; 32]>,
    },
    Made {
        share: KeyShare,
        outcome: [u8; 32],
    },
    Finished,
}

crate::secrets::secret!(KeygenState);

impl FrostKeygen {
    pub(super) fn new(setup: KeygenSetup) -> Self {
        let peers = (1..=setup.parties)
            .filter(|index| *index != setup.me)
            .collect();
        let round_collector = RoundCollector::new(peers, 4);
        Self {
            setup,
            round_collector,
            state: KeygenState::New,
            own: BTreeMap::new(),
        }
    }

    fn chain_commitment(&self, index: SignerIndex, part: &[u8; 32], salt: &[u8; 32]) -> [u8; 32] {
        Sha256::new()
            .chain_update(b"covault/frost/chain-code-part")
            .chain_update(self.setup.context)
            .chain_update([index])
            .chain_update(part)
            .chain_update(salt)
            .finalize()
            .into()
    }

    fn echo(&self) -> [u8; 32] {
        let mut hash = Sha256::new()
            .chain_update(b"covault/frost/echo")
            .chain_update(self.setup.context)
            .chain_update([self.setup.threshold, self.setup.parties]);
        for (index, body) in &self.own {
            hash.update([*index]);
            hash.update(Sha256::digest(body.as_slice()));
        }
        hash.finalize().into()
    }

    fn first(
        &mut self,
        bodies: BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<StepOutput<KeyShare>, Abort> {
        let KeygenState::Committed {
            secret,
            chain_part,
            chain_salt,
        } = std::mem::replace(&mut self.state, KeygenState::Finished)
        else {
            return Err(Abort::new("out of order"));
        };
        let (mut packages, mut chain_commitments) = (BTreeMap::new(), BTreeMap::new());
        for (from, body) in bodies {
            let first: KeygenRound1 = decode(from, &body)?;
            let package = dkg1::Package::deserialize(&first.package)
                .map_err(|_| Abort::blame(from, "malformed package"))?;
            packages.insert(identifier(from)?, package);
            chain_commitments.insert(from, first.chain_commitment);
            self.own.insert(from, body);
        }
        let echo = self.echo();
        self.state = KeygenState::Echoed {
            secret,
            chain_part,
            chain_salt,
            echo,
            packages,
            chain_commitments,
        };
        Ok(StepOutput::send(
            self.round_collector.to_all(2, false, &echo),
        ))
    }

    fn second(
        &mut self,
        bodies: &BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<StepOutput<KeyShare>, Abort> {
        let KeygenState::Echoed {
            secret,
            chain_part,
            chain_salt,
            echo,
            packages,
            chain_commitments,
        } = std::mem::replace(&mut self.state, KeygenState::Finished)
        else {
            return Err(Abort::new("out of order"));
        };
        if bodies.values().any(|body| body.as_slice() != echo) {
            // Either some sender equivocated or some echo lies: nobody can be named.
            return Err(Abort::new("the parties saw different first messages"));
        }
        let (secret, outgoing) = dkg::part2(secret, &packages).map_err(|error| abort(&error))?;
        let mut send = Vec::new();
        for to in self.round_collector.peers() {
            let package = outgoing
                .get(&identifier(*to)?)
                .ok_or_else(|| Abort::new("no package for a peer"))?
                .serialize()
                .map_err(|error| abort(&error))?;
            let mut third = KeygenRound3 {
                package,
                chain_part,
                chain_salt,
            };
            let body = encode(&third)?;
            third.package.zeroize();
            send.push(OutgoingMessage {
                to: *to,
                round: 3,
                private: true,
                body,
            });
        }
        self.state = KeygenState::Shared {
            secret: Box::new(secret),
            chain_part,
            echo,
            packages,
            chain_commitments,
        };
        Ok(StepOutput::send(send))
    }

    fn third(
        &mut self,
        bodies: &BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<StepOutput<KeyShare>, Abort> {
        let KeygenState::Shared {
            secret,
            chain_part,
            echo,
            packages,
            chain_commitments,
        } = std::mem::replace(&mut self.state, KeygenState::Finished)
        else {
            return Err(Abort::new("out of order"));
        };
        let mut received = BTreeMap::new();
        let mut chain_parts = BTreeMap::from([(self.setup.me, chain_part)]);
        for (from, body) in bodies {
            let mut third: KeygenRound3 = decode(*from, body)?;
            let package = dkg2::Package::deserialize(&third.package);
            third.package.zeroize();
            received.insert(
                identifier(*from)?,
                package.map_err(|_| Abort::blame(*from, "malformed package"))?,
            );
            let commitment = self.chain_commitment(*from, &third.chain_part, &third.chain_salt);
            if chain_commitments.get(from) != Some(&commitment) {
                return Err(Abort::blame(
                    *from,
                    "opened another chain code than committed",
                ));
            }
            chain_parts.insert(*from, third.chain_part);
        }
        let (key, public) =
            dkg::part3(&secret, &packages, &received).map_err(|error| abort(&error))?;
        let chain_code: [u8; 32] = chain_parts
            .values()
            .fold(
                Sha256::new()
                    .chain_update(b"covault/frost/chain-code")
                    .chain_update(self.setup.context),
                |hash, part| hash.chain_update(part),
            )
            .finalize()
            .into();
        let public_key = public
            .verifying_key()
            .serialize()
            .map_err(|error| abort(&error))?;
        let mut stored = StoredShare {
            version: SHARE_VERSION,
            key: key.serialize().map_err(|error| abort(&error))?,
            public: public.serialize().map_err(|error| abort(&error))?,
        };
        let secret = encode(&stored)?;
        let outcome: [u8; 32] = Sha256::new()
            .chain_update(b"covault/frost/outcome")
            .chain_update(echo)
            .chain_update(chain_code)
            .chain_update(Sha256::digest(&stored.public))
            .finalize()
            .into();
        stored.key.zeroize();
        let root = RootKey {
            curve: Curve::Ed25519,
            public_key,
            chain_code,
        };
        self.state = KeygenState::Made {
            share: KeyShare { root, secret },
            outcome,
        };
        Ok(StepOutput::send(
            self.round_collector.to_all(4, false, &outcome),
        ))
    }

    fn fourth(
        &mut self,
        bodies: &BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<StepOutput<KeyShare>, Abort> {
        let KeygenState::Made { share, outcome } =
            std::mem::replace(&mut self.state, KeygenState::Finished)
        else {
            return Err(Abort::new("out of order"));
        };
        if bodies.values().any(|body| body.as_slice() != outcome) {
            return Err(Abort::new("the parties made different keys"));
        }
        Ok(StepOutput::done(share))
    }
}

impl RoundProtocol for FrostKeygen {
    type Outcome = KeyShare;

    fn round_collector(&self) -> &RoundCollector {
        &self.round_collector
    }

    fn round_collector_mut(&mut self) -> &mut RoundCollector {
        &mut self.round_collector
    }

    fn begin(&mut self, entropy: &dyn Entropy) -> Result<StepOutput<KeyShare>, Abort> {
        let KeygenSetup {
            me,
            threshold,
            parties,
            ..
        } = self.setup;
        let rng = EntropyRng(entropy);
        let (secret, package) = dkg::part1(identifier(me)?, parties.into(), threshold.into(), rng)
            .map_err(|error| abort(&error))?;
        let (mut chain_part, mut chain_salt) = ([0; 32], [0; 32]);
        entropy.fill(&mut chain_part);
        entropy.fill(&mut chain_salt);
        let first = KeygenRound1 {
            package: package.serialize().map_err(|error| abort(&error))?,
            chain_commitment: self.chain_commitment(me, &chain_part, &chain_salt),
        };
        let body = encode(&first)?;
        let send = self.round_collector.to_all(1, false, &body);
        self.own.insert(me, body);
        self.state = KeygenState::Committed {
            secret,
            chain_part,
            chain_salt,
        };
        self.round_collector.wait_for(1);
        Ok(StepOutput::send(send))
    }

    fn take(&mut self, round: u16, bodies: RoundMessages) -> Result<StepOutput<KeyShare>, Abort> {
        match round {
            1 => self.first(bodies),
            2 => self.second(&bodies),
            3 => self.third(&bodies),
            _ => self.fourth(&bodies),
        }
    }
}
