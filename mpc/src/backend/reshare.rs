//! Shamir resharing: the holders of a key's shares deal them out again, to other holders or the same,
//! with another threshold or the same (Desmedt and Jajodia, "Redistributing secret shares to new
//! access structures", 1997; verifiable by Feldman's commitments, as in Herzberg et al., "Proactive
//! secret sharing", 1995). One protocol for refresh, reshare, replacement and repair, and for every
//! curve, composed of frost-core's pieces.
//!
//! Exactly old-threshold dealers each share `lambda_i * s_i`, their Lagrange part of the private key,
//! by a fresh polynomial of the new threshold. A new share is the sum of what its holder was dealt.
//! Four rounds: (1) the dealers' commitments; (2) hash of everyone's first message, so that a dealer
//! who told different parties different things is noticed before any secret leaves; (3) the dealt
//! parts, sealed; (4) hash of the outcome.
//!
//! Checked: that the dealers' constant terms add up to the root key (by everyone), that each is what
//! the dealer's old share gives (by anyone who holds an old share, and so knows the verifying shares),
//! that each part is on its dealer's polynomial.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{derive::RootKey, fault::Fault, port::Entropy, signature::Curve};
use frost_core::{
    Ciphersuite, Element, Identifier, Scalar, SigningKey, compute_lagrange_coefficient,
    keys::{
        IdentifierList, PublicKeyPackage, SecretShare, SigningShare,
        VerifiableSecretSharingCommitment, VerifyingShare, split, sum_commitments,
    },
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::{
    Abort, Dealer, OutgoingMessage, PlainShare, ReshareSetup, SignerIndex, StepOutput,
    round_collector::{RoundCollector, RoundMessages, RoundProtocol, decode, encode},
};
use crate::entropy::EntropyRng;

/// The rounds of this protocol; a backend's own come after.
pub(super) const ROUNDS: u16 = 4;

/// A dealer's first message. Who does not deal sends nothing in its place.
#[derive(Serialize, Deserialize)]
struct DealMessage {
    /// One point per coefficient, the constant term's first.
    commitment: Vec<Vec<u8>>,
    /// New holders know the root key from the order, but not this.
    chain_code: [u8; 32],
}

type VssCommitment<C> = VerifiableSecretSharingCommitment<C>;

/// A ciphersuite of frost-core, of which only field and group are used here.
pub(super) trait CurveCiphersuite: Ciphersuite + Send + 'static {
    /// The curve.
    const CURVE: Curve;
}

impl CurveCiphersuite for frost_ed25519::Ed25519Sha512 {
    const CURVE: Curve = Curve::Ed25519;
}

impl CurveCiphersuite for frost_secp256k1::Secp256K1Sha256 {
    const CURVE: Curve = Curve::Secp256k1;
}

/// The session. A dealer that leaves ends with `None`.
pub(super) struct ReshareSession<C: CurveCiphersuite> {
    setup: ReshareSetup,
    /// Ours, when we deal or can check dealers by it.
    share: Option<PlainShare>,
    round_collector: RoundCollector,
    /// Everyone's first message, ours too.
    first: RoundMessages,
    /// What we deal, by new holder.
    parts: BTreeMap<SignerIndex, Zeroizing<[u8; 32]>>,
    commitments: BTreeMap<SignerIndex, VssCommitment<C>>,
    root: Option<RootKey>,
    /// Of the new generation.
    verifying: BTreeMap<SignerIndex, Vec<u8>>,
    echo: [u8; 32],
    made: Option<PlainShare>,
    outcome: [u8; 32],
}

crate::secrets::secret!(ReshareSession<frost_secp256k1::Secp256K1Sha256>);

fn identifier<C: Ciphersuite>(index: SignerIndex) -> Result<Identifier<C>, Abort> {
    Identifier::try_from(u16::from(index)).map_err(|_| Abort::new("no such index"))
}

fn broken<E: std::fmt::Display>(error: E) -> Abort {
    Abort::new(error.to_string())
}

fn scalar<C: Ciphersuite>(bytes: &[u8; 32]) -> Result<Zeroizing<SigningShare<C>>, Abort> {
    SigningShare::deserialize(bytes)
        .map(Zeroizing::new)
        .map_err(|_| Abort::new("a share is not a scalar"))
}

fn bytes<C: Ciphersuite>(share: &SigningShare<C>) -> Result<Zeroizing<[u8; 32]>, Abort> {
    let serialized = Zeroizing::new(share.serialize());
    let mut bytes = Zeroizing::new([0; 32]);
    if serialized.len() != bytes.len() {
        return Err(Abort::new("a scalar is not of 32 bytes"));
    }
    bytes.copy_from_slice(&serialized);
    Ok(bytes)
}

/// Checks a setup against the share of who deals.
pub(super) fn check(setup: &ReshareSetup, share: Option<&PlainShare>) -> Result<(), Fault> {
    let invalid = |field: &str, problem: &str| Fault::field(field, problem);
    let ReshareSetup {
        me,
        holders,
        threshold,
        dealers,
        ..
    } = setup;
    if *threshold < 2 || threshold > holders {
        return Err(invalid(
            "threshold",
            "must be 2 or more, and at most the number of holders",
        ));
    }
    let parties: BTreeSet<SignerIndex> = dealers.iter().map(|dealer| dealer.party).collect();
    let old: BTreeSet<SignerIndex> = dealers.iter().map(|dealer| dealer.old).collect();
    let distinct = parties.len() == dealers.len() && old.len() == dealers.len();
    if dealers.len() < 2 || !distinct || parties.contains(&0) || old.contains(&0) {
        return Err(invalid("dealers", "must be 2 or more different holders"));
    }
    if *me == 0 || *me > setup.parties() {
        return Err(invalid("dealers", "we are not one of the parties"));
    }
    if parties.last().is_some_and(|last| *last > setup.parties()) {
        return Err(invalid("dealers", "must be parties of the run"));
    }
    if let Some(dealer) = setup.dealer(*me) {
        let share = share.ok_or_else(|| invalid("dealers", "we hold no share to deal"))?;
        if share.index != dealer.old || share.root.public_key != setup.root_public_key {
            return Err(invalid("dealers", "our share is another one"));
        }
    }
    Ok(())
}

impl ReshareSetup {
    /// The number of parties: the new holders, and the dealers that leave.
    pub fn parties(&self) -> u8 {
        let leaving = self
            .dealers
            .iter()
            .filter(|dealer| dealer.party > self.holders);
        let leaving = SignerIndex::try_from(leaving.count()).unwrap_or(SignerIndex::MAX);
        self.holders.saturating_add(leaving)
    }

    fn dealer(&self, party: SignerIndex) -> Option<Dealer> {
        self.dealers
            .iter()
            .find(|dealer| dealer.party == party)
            .copied()
    }

    fn stays(&self) -> bool {
        self.me <= self.holders
    }
}

impl<C: CurveCiphersuite> ReshareSession<C> {
    /// For a setup that passed [`check`].
    pub(super) fn new(setup: ReshareSetup, share: Option<PlainShare>) -> Self {
        let peers = (1..=setup.parties())
            .filter(|index| *index != setup.me)
            .collect();
        Self {
            round_collector: RoundCollector::new(peers, ROUNDS),
            setup,
            share,
            first: RoundMessages::new(),
            parts: BTreeMap::new(),
            commitments: BTreeMap::new(),
            root: None,
            verifying: BTreeMap::new(),
            echo: [0; 32],
            made: None,
            outcome: [0; 32],
        }
    }

    /// A dealer's Lagrange coefficient.
    fn lambda(&self, dealer: Dealer) -> Result<Scalar<C>, Abort> {
        let set = self
            .setup
            .dealers
            .iter()
            .map(|dealer| identifier::<C>(dealer.old))
            .collect::<Result<BTreeSet<_>, Abort>>()?;
        compute_lagrange_coefficient(&set, None, identifier(dealer.old)?).map_err(broken)
    }

    /// Shares our part of the private key out, and gives our first message.
    fn deal(&mut self, entropy: &dyn Entropy) -> Result<Zeroizing<Vec<u8>>, Abort> {
        let Some(dealer) = self.setup.dealer(self.setup.me) else {
            return Ok(Zeroizing::default());
        };
        let lambda = self.lambda(dealer)?;
        let share = self
            .share
            .as_ref()
            .ok_or_else(|| Abort::new("we hold no share to deal"))?;
        let secret = scalar::<C>(&share.secret)?;
        let key = SigningKey::<C>::from_scalar(lambda * secret.to_scalar()).map_err(broken)?;
        let (parts, _) = split(
            &key,
            self.setup.holders.into(),
            self.setup.threshold.into(),
            IdentifierList::Default,
            &mut EntropyRng(entropy),
        )
        .map_err(broken)?;
        let mut commitment = None;
        for holder in 1..=self.setup.holders {
            let part = parts
                .get(&identifier(holder)?)
                .ok_or_else(|| Abort::new("no part for a holder"))?;
            self.parts.insert(holder, bytes(part.signing_share())?);
            commitment = Some(part.commitment().clone());
        }
        let commitment = commitment.ok_or_else(|| Abort::new("no commitment"))?;
        encode(&DealMessage {
            commitment: commitment.serialize().map_err(broken)?,
            chain_code: share.root.chain_code,
        })
    }

    /// What a dealer's constant term must be, where we know its old verifying share.
    fn expected(&self, dealer: Dealer) -> Result<Option<Element<C>>, Abort> {
        let known = self
            .share
            .as_ref()
            .and_then(|share| share.verifying.get(&dealer.old));
        let Some(known) = known else { return Ok(None) };
        let old = VerifyingShare::<C>::deserialize(known).map_err(broken)?;
        Ok(Some(old.to_element() * self.lambda(dealer)?))
    }

    fn read_deal(
        &self,
        from: SignerIndex,
        body: &[u8],
    ) -> Result<Option<(VssCommitment<C>, DealMessage)>, Abort> {
        let Some(dealer) = self.setup.dealer(from) else {
            if body.is_empty() {
                return Ok(None);
            }
            return Err(Abort::blame(from, "dealt, but was not asked to"));
        };
        let deal: DealMessage = decode(from, body)?;
        if deal.commitment.len() != usize::from(self.setup.threshold) {
            return Err(Abort::blame(from, "dealt for another threshold"));
        }
        let commitment = VssCommitment::<C>::deserialize(&deal.commitment)
            .map_err(|_| Abort::blame(from, "malformed commitment"))?;
        let constant = commitment
            .coefficients()
            .first()
            .ok_or_else(|| Abort::new("an empty commitment"))?
            .value();
        if self
            .expected(dealer)?
            .is_some_and(|expected| expected != constant)
        {
            return Err(Abort::blame(from, "dealt another share than its own"));
        }
        if self
            .share
            .as_ref()
            .is_some_and(|share| share.root.chain_code != deal.chain_code)
        {
            return Err(Abort::blame(from, "sent another chain code"));
        }
        Ok(Some((commitment, deal)))
    }

    fn first(&mut self, bodies: RoundMessages) -> Result<StepOutput<Option<PlainShare>>, Abort> {
        self.first.extend(bodies);
        let mut chain_codes = BTreeSet::new();
        for (from, body) in &self.first {
            if let Some((commitment, deal)) = self.read_deal(*from, body)? {
                self.commitments.insert(*from, commitment);
                chain_codes.insert(deal.chain_code);
            }
        }
        let (Some(chain_code), None) = (chain_codes.pop_first(), chain_codes.first()) else {
            return Err(Abort::new("the dealers sent different chain codes"));
        };
        let commitments: Vec<&VssCommitment<C>> = self.commitments.values().collect();
        let sum = sum_commitments(&commitments).map_err(broken)?;
        let holders = (1..=self.setup.holders)
            .map(identifier)
            .collect::<Result<BTreeSet<_>, Abort>>()?;
        let public = PublicKeyPackage::<C>::from_commitment(&holders, &sum).map_err(broken)?;
        let public_key = public.verifying_key().serialize().map_err(broken)?;
        if public_key != self.setup.root_public_key {
            return Err(Abort::new("what was dealt does not add up to the key"));
        }
        for holder in 1..=self.setup.holders {
            let share = public
                .verifying_shares()
                .get(&identifier(holder)?)
                .ok_or_else(|| Abort::new("no verifying share"))?;
            self.verifying
                .insert(holder, share.serialize().map_err(broken)?);
        }
        self.root = Some(RootKey {
            curve: C::CURVE,
            public_key,
            chain_code,
        });
        let mut hash = Sha256::new()
            .chain_update(b"covault/reshare/echo")
            .chain_update(self.setup.context)
            .chain_update([self.setup.threshold, self.setup.holders]);
        for (index, body) in &self.first {
            hash.update([*index]);
            hash.update(Sha256::digest(body.as_slice()));
        }
        self.echo = hash.finalize().into();
        Ok(StepOutput::send(
            self.round_collector.to_all(2, false, &self.echo),
        ))
    }

    fn second(&mut self, bodies: &RoundMessages) -> Result<StepOutput<Option<PlainShare>>, Abort> {
        if bodies.values().any(|body| body.as_slice() != self.echo) {
            // Either some dealer equivocated or some echo lies: nobody can be named.
            return Err(Abort::new("the parties saw different deals"));
        }
        let send = self
            .round_collector
            .peers()
            .iter()
            .map(|to| OutgoingMessage {
                to: *to,
                round: 3,
                private: true,
                body: self.parts.get(to).map_or_else(Zeroizing::default, |part| {
                    Zeroizing::new(part.as_slice().to_vec())
                }),
            });
        let send = send.collect();
        let me = self.setup.me;
        self.parts.retain(|holder, _| *holder == me);
        Ok(StepOutput::send(send))
    }

    /// The part that a dealer gave us, when it is on the dealer's polynomial.
    fn part(&self, from: SignerIndex, body: &[u8]) -> Result<Zeroizing<SigningShare<C>>, Abort> {
        let commitment = self
            .commitments
            .get(&from)
            .ok_or_else(|| Abort::new("a commitment is missing"))?;
        let malformed = || Abort::blame(from, "malformed part");
        let part: &[u8; 32] = body.try_into().map_err(|_| malformed())?;
        let part = scalar::<C>(part).map_err(|_| malformed())?;
        SecretShare::new(identifier(self.setup.me)?, *part, commitment.clone())
            .verify()
            .map_err(|_| Abort::blame(from, "dealt a part that is not on its polynomial"))?;
        Ok(part)
    }

    fn third(&mut self, bodies: &RoundMessages) -> Result<StepOutput<Option<PlainShare>>, Abort> {
        let me = self.setup.me;
        let own = self.parts.remove(&me);
        let root = self
            .root
            .clone()
            .ok_or_else(|| Abort::new("out of order"))?;
        let mut sum: Option<Zeroizing<SigningShare<C>>> = None;
        for party in 1..=self.setup.parties() {
            let body = match (&own, bodies.get(&party)) {
                (Some(own), _) if party == me => own.as_slice(),
                (_, Some(body)) => body.as_slice(),
                _ => &[],
            };
            if self.setup.dealer(party).is_none() || !self.setup.stays() {
                if body.is_empty() {
                    continue;
                }
                return Err(Abort::blame(party, "sent a part out of place"));
            }
            let part = self.part(party, body)?;
            let total = sum
                .as_ref()
                .map_or(part.to_scalar(), |sum| sum.to_scalar() + part.to_scalar());
            sum = Some(Zeroizing::new(SigningShare::new(total)));
        }
        if let Some(sum) = sum {
            let verifying = VerifyingShare::<C>::from(*sum)
                .serialize()
                .map_err(broken)?;
            if self.verifying.get(&me) != Some(&verifying) {
                return Err(Abort::new("our new share does not fit"));
            }
            self.made = Some(PlainShare {
                root: root.clone(),
                index: me,
                secret: bytes(&sum)?,
                verifying: self.verifying.clone(),
            });
        }
        let mut hash = Sha256::new()
            .chain_update(b"covault/reshare/outcome")
            .chain_update(self.echo)
            .chain_update(&root.public_key)
            .chain_update(root.chain_code);
        for (index, share) in &self.verifying {
            hash.update([*index]);
            hash.update(Sha256::digest(share));
        }
        self.outcome = hash.finalize().into();
        Ok(StepOutput::send(self.round_collector.to_all(
            4,
            false,
            &self.outcome,
        )))
    }

    fn fourth(&mut self, bodies: &RoundMessages) -> Result<StepOutput<Option<PlainShare>>, Abort> {
        if bodies.values().any(|body| body.as_slice() != self.outcome) {
            return Err(Abort::new("the parties made different shares"));
        }
        Ok(StepOutput::done(self.made.take()))
    }
}

impl<C: CurveCiphersuite> RoundProtocol for ReshareSession<C> {
    type Outcome = Option<PlainShare>;

    fn round_collector(&self) -> &RoundCollector {
        &self.round_collector
    }

    fn round_collector_mut(&mut self) -> &mut RoundCollector {
        &mut self.round_collector
    }

    fn begin(&mut self, entropy: &dyn Entropy) -> Result<StepOutput<Option<PlainShare>>, Abort> {
        let body = self.deal(entropy)?;
        let send = self.round_collector.to_all(1, false, &body);
        self.first.insert(self.setup.me, body);
        self.round_collector.wait_for(1);
        Ok(StepOutput::send(send))
    }

    fn take(
        &mut self,
        round: u16,
        bodies: RoundMessages,
    ) -> Result<StepOutput<Option<PlainShare>>, Abort> {
        match round {
            1 => self.first(bodies),
            2 => self.second(&bodies),
            3 => self.third(&bodies),
            _ => self.fourth(&bodies),
        }
    }
}
