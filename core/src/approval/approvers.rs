//! Who may approve, and which of an order's approvals are theirs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{
    Approval, ApproverKey, ApproverKeyId, GivenApproval, MAX_VALIDITY_MS, OrderApprovals,
    ProofFacts, Rejection,
};
use crate::{
    amount::U256,
    fault::{Class, Fault},
};

/// On what an approver saw the payment. A passkey shows nothing, so who serves the page can lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ApprovalWay {
    /// A page of the console, whose server the orchestrator's operator runs.
    Console,
    /// A page of a signer node, which decodes the payload itself.
    Node,
    /// `covault approve` on the approver's own machine, which decodes the payload itself.
    Ssh,
    /// A client signer, which decodes the payload itself and asks a program.
    Client,
}

impl ApprovalWay {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Console, Self::Node, Self::Ssh, Self::Client];

    /// The name in policy files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Console => "console",
            Self::Node => "node",
            Self::Ssh => "ssh",
            Self::Client => "client",
        }
    }
}

impl fmt::Display for ApprovalWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A person's valid approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approved {
    /// The person's name among the [`Approvers`].
    pub person: String,
    /// How.
    pub way: ApprovalWay,
    /// With a passkey that a cloud can copy.
    pub synced: bool,
}

/// What an order's approvals come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedApprovals {
    /// Those of known keys, all of them valid. A person with two keys may be here twice.
    pub approved: Vec<Approved>,
    /// The places of those whose keys are nobody's here. Other signers may know them.
    pub unknown: Vec<usize>,
}

/// People, by name, and their keys. A key is one person's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Approvers {
    people: BTreeSet<String>,
    keys: BTreeMap<ApproverKeyId, (String, ApproverKey)>,
    /// The origins of pages that signer nodes serve; those of all others are the console's.
    node_origins: BTreeSet<String>,
}

impl Approvers {
    /// Nobody yet, with the `origins` of pages that signer nodes serve.
    pub fn with_node_origins(origins: BTreeSet<String>) -> Self {
        Self {
            node_origins: origins,
            ..Self::default()
        }
    }

    /// Adds a person's key.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] when an approver already has it, also under another credential id or as
    /// another kind of key: one private key is one person.
    pub fn add(&mut self, person: &str, key: ApproverKey) -> Result<(), Fault> {
        let same = |known: &ApproverKey| known.public_key() == key.public_key();
        let mut known = self.keys.values().filter(|(_, known)| same(known));
        if let Some((owner, _)) = self.keys.get(&key.id()).or_else(|| known.next()) {
            let sentence = format!("is already a key of {owner}");
            return Err(Fault::new(Class::Invalid, sentence));
        }
        self.people.insert(person.to_owned());
        self.keys.insert(key.id(), (person.to_owned(), key));
        Ok(())
    }

    /// Whether an approver has this name.
    pub fn knows(&self, person: &str) -> bool {
        self.people.contains(person)
    }

    /// The names.
    pub fn people(&self) -> impl Iterator<Item = &str> {
        self.people.iter().map(String::as_str)
    }

    /// The keys of a person.
    pub fn keys_of(&self, person: &str) -> impl Iterator<Item = &ApproverKey> {
        let keys = self.keys.values();
        keys.filter(move |(owner, _)| owner == person)
            .map(|(_, key)| key)
    }

    /// The ways in which a key can approve.
    pub fn ways_of(&self, key: &ApproverKey) -> BTreeSet<ApprovalWay> {
        match key {
            ApproverKey::Passkey(passkey) => {
                let origins = passkey.origins.iter();
                origins.map(|origin| self.way_of(origin)).collect()
            }
            ApproverKey::Ssh(key) if key.key_data().is_ed25519() => {
                [ApprovalWay::Ssh, ApprovalWay::Client].into()
            }
            ApproverKey::Ssh(_) => [ApprovalWay::Ssh].into(),
        }
    }

    fn way_of(&self, origin: &str) -> ApprovalWay {
        match self.node_origins.contains(origin) {
            true => ApprovalWay::Node,
            false => ApprovalWay::Console,
        }
    }

    /// Checks the approvals that `given` holds for `approval`, of a transaction that can cost `fee` at most,
    /// at `now_ms`. An approval of a known key that is not valid makes all of it invalid: no honest sender
    /// passes it on.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field below `approvals`.
    pub fn verify(
        &self,
        approval: &Approval,
        given: &OrderApprovals,
        fee: U256,
        now_ms: u64,
    ) -> Result<VerifiedApprovals, Fault> {
        given.check_bounds()?;
        let mut verified = VerifiedApprovals::default();
        if given.given.is_empty() {
            return Ok(verified);
        }
        let id = approval.id()?;
        for (place, given) in given.given.iter().enumerate() {
            match self.verify_one(given, &id) {
                Ok(Some(approved)) => verified.approved.push(approved),
                Ok(None) => verified.unknown.push(place),
                Err(fault) => return Err(fault.with_prefix(&format!("approvals[{place}]"))),
            }
        }
        if !verified.approved.is_empty() {
            approval.check_terms(fee, now_ms)?;
        }
        Ok(verified)
    }

    /// Whose rejection it is. `None`: the key is nobody's.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn rejected_by(&self, rejection: &Rejection) -> Result<Option<&str>, Fault> {
        let challenge = rejection.challenge()?;
        let of_proof = |fault: Fault| fault.with_prefix("proof");
        let id = rejection.proof.key_id().map_err(of_proof)?;
        let Some((person, key)) = self.keys.get(&id) else {
            return Ok(None);
        };
        key.verify(&rejection.proof, &challenge).map_err(of_proof)?;
        Ok(Some(person))
    }

    /// `None`: the key is nobody's.
    fn verify_one(&self, given: &GivenApproval, id: &[u8; 32]) -> Result<Option<Approved>, Fault> {
        let Some((person, key)) = self.keys.get(&given.proof.key_id()?) else {
            return Ok(None);
        };
        let (way, synced) = match key.verify(&given.proof, &given.challenge(id)?)? {
            ProofFacts::WebAuthn { origin, synced } => (self.way_of(&origin), synced),
            ProofFacts::Ssh => (ApprovalWay::Ssh, false),
            ProofFacts::Node => (ApprovalWay::Client, false),
        };
        Ok(Some(Approved {
            person: person.clone(),
            way,
            synced,
        }))
    }
}

impl Approval {
    /// Checks the two fields that a signer does not know by itself, for a transaction that can cost `fee` at most.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field below `approvals`.
    pub fn check_terms(&self, fee: U256, now_ms: u64) -> Result<(), Fault> {
        let Self {
            most_fee,
            valid_until_ms,
            ..
        } = self;
        let wrong_time = |problem| Err(Fault::field("approvals.validUntilMs", problem));
        if now_ms >= *valid_until_ms {
            return wrong_time("the approvals have expired");
        }
        if valid_until_ms.saturating_sub(now_ms) > MAX_VALIDITY_MS {
            return wrong_time("is more than 24 hours ahead");
        }
        if fee > U256::from(*most_fee) {
            return Err(Fault::field(
                "approvals.mostFee",
                format_args!(
                    "the transaction's fee could reach {fee}, above the approved {most_fee} (in the smallest unit of \
                     the coin)"
                ),
            ));
        }
        Ok(())
    }
}
