//! Who has to agree to a request before anything of it is signed, and who has.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{RequestState, SigningRequest};
use crate::{
    amount::U256,
    approval::{
        Approval, ApprovalProof, ApprovalTerms, ApproverKey, GivenApproval, MAX_APPROVALS,
        MAX_VALIDITY_MS, OrderApprovals, rejections_challenge,
    },
    fault::Fault,
    field::label,
    ids::RequestId,
    networks::Unsigned,
    order::NodeId,
    wallet::MAX_NAME,
};

/// Most persons that a rule names.
pub const MAX_APPROVERS: usize = 100;
/// Most client signers that a rule names.
const MAX_CLIENT_SIGNERS: usize = 16;
/// Most wallets that a rule names, and most characters of an address.
const MAX_WALLETS: usize = 100;
const MAX_ADDRESS: usize = 128;
/// Most keys of one person.
const MAX_KEYS: usize = 16;
/// How long a request waits for people where nothing else is said, in milliseconds: 72 hours.
pub const USUAL_EXPIRY_MS: u64 = 72 * 60 * 60 * 1000;
/// The shortest and the longest that it can be told to, in milliseconds: a minute, and 30 days.
const EXPIRY_MS: std::ops::RangeInclusive<u64> = 60_000..=30 * 24 * 60 * 60 * 1000;

/// Why people are asked again when signers hold a request no longer.
const HOLD_IS_OVER: &str =
    "the signers' hold has ended and its approvals have expired: approve it again";

/// Who decides about the requests of a vault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalRule {
    /// Whether anyone has to.
    pub mode: ApprovalMode,
    /// Who can approve and reject. Of an automatic vault: what its signers want approved.
    pub of: Vec<Approver>,
    /// How long a request waits for them, in milliseconds; it fails then.
    pub expires_ms: u64,
    /// Client signers that a request can name: the one that it names decides in place of the people.
    pub client_signers: Vec<NodeId>,
    /// Wallets for which more persons have to approve than for others.
    pub wallets: Vec<WalletNeeds>,
}

/// How many persons have to approve what one wallet of a vault signs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WalletNeeds {
    /// The wallet's address, as the service shows it.
    pub address: String,
    /// How many; 1 or more. Where the vault's rule needs more, that holds.
    pub needs: u16,
}

/// Whether people decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApprovalMode {
    /// The vault signs at once, unless its signers want an approval.
    Automatic,
    /// Nothing is signed before this many persons have approved it.
    Manual {
        /// How many; 1 or more.
        needs: u16,
    },
    /// Of a request that names a client signer: that one decides, whatever the rule of the vault is.
    ClientSigner(NodeId),
}

/// A person who can approve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approver {
    /// What everyone calls the person; unique in a rule.
    pub name: String,
    /// Lines of the person's public keys. Several are one person's.
    pub keys: Vec<String>,
}

impl ApprovalRule {
    /// A vault that signs at once, and whose signers want no approvals.
    pub fn automatic() -> Self {
        Self {
            mode: ApprovalMode::Automatic,
            of: Vec::new(),
            expires_ms: USUAL_EXPIRY_MS,
            client_signers: Vec::new(),
            wallets: Vec::new(),
        }
    }

    /// The rule of requests of the wallet of this address: as many as the stricter one needs, that of the vault or that of
    /// the wallet.
    #[must_use]
    pub fn of_wallet(&self, address: &str) -> Self {
        let mut own = self.wallets.iter().filter(|it| it.address == address);
        let own = own.next().map_or(0, |it| it.needs);
        let mode = match self.mode {
            ApprovalMode::Automatic if own > 0 => ApprovalMode::Manual { needs: own },
            ApprovalMode::Manual { needs } => ApprovalMode::Manual {
                needs: needs.max(own),
            },
            mode => mode,
        };
        Self {
            mode,
            ..self.clone()
        }
    }

    /// The rule of a request that names a client signer: the same people can approve what signers want approved.
    #[must_use]
    pub fn of_client_signer(self, signer: NodeId) -> Self {
        Self {
            mode: ApprovalMode::ClientSigner(signer),
            ..self
        }
    }

    /// The client signer that decides, where one does.
    pub fn client_signer(&self) -> Option<NodeId> {
        match self.mode {
            ApprovalMode::ClientSigner(signer) => Some(signer),
            ApprovalMode::Automatic | ApprovalMode::Manual { .. } => None,
        }
    }

    /// How many persons have to approve.
    pub fn needs(&self) -> usize {
        match self.mode {
            ApprovalMode::Automatic | ApprovalMode::ClientSigner(_) => 0,
            ApprovalMode::Manual { needs } => needs.into(),
        }
    }

    /// The wallets for which more have to approve, one line each.
    pub fn describe_wallets(&self) -> String {
        let of = |it: &WalletNeeds| format!("{} from {}", it.needs, it.address);
        let lines: Vec<_> = self.wallets.iter().map(of).collect();
        lines.join("\n")
    }

    /// The rule in words, with its wallets and the client signers that requests may name.
    pub fn describe(&self) -> String {
        let mut people = self.describe_people();
        if !self.wallets.is_empty() {
            let wallets = self.describe_wallets().replace('\n', ", ");
            people.push_str(&format!("; of these wallets as many at least: {wallets}"));
        }
        match self.client_signers.as_slice() {
            [] => people,
            signers => {
                let lines: Vec<_> = signers.iter().map(|it| it.openssh_line("")).collect();
                let lines = lines.join(", ");
                format!("{people}; for requests that name it, the client signer: {lines}")
            }
        }
    }

    /// Who decides where no client signer is named, in words.
    pub fn describe_people(&self) -> String {
        let names = self.people();
        match self.mode {
            ApprovalMode::Automatic if names.is_empty() => "automatic".to_owned(),
            ApprovalMode::Automatic => {
                format!("automatic; what signers want approved: {names}")
            }
            ApprovalMode::Manual { needs } => format!("{needs} of {names}"),
            ApprovalMode::ClientSigner(signer) => {
                format!("client signer {}", signer.openssh_line(""))
            }
        }
    }

    /// The names of the people.
    pub(super) fn people(&self) -> String {
        let names: Vec<_> = self.of.iter().map(|it| it.name.as_str()).collect();
        names.join(", ")
    }

    /// The client signers that requests may name, one line each.
    pub fn describe_client_signers(&self) -> String {
        let lines: Vec<_> = (self.client_signers.iter())
            .map(|it| it.openssh_line(""))
            .collect();
        lines.join("\n")
    }

    /// The client signer that decides about what replaces the transaction of a request that `named` one, or fills a gap
    /// before it: that one, unless the rule no longer names it. Then the people of the rule decide.
    pub fn still_named(&self, named: Option<NodeId>) -> Option<NodeId> {
        named.filter(|signer| self.client_signers.contains(signer))
    }

    /// Whose proof it is, of those whom the rule names.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`], field `proof`, when it is nobody's, or not valid.
    pub(super) fn approver(
        &self,
        proof: &ApprovalProof,
        challenge: &[u8; 32],
    ) -> Result<String, Fault> {
        let id = proof.key_id().map_err(|fault| fault.with_prefix("proof"))?;
        for approver in &self.of {
            for line in &approver.keys {
                let key = ApproverKey::reread(line)?;
                if key.id() == id {
                    let verified = key.verify(proof, challenge);
                    verified.map_err(|fault| fault.with_prefix("proof"))?;
                    return Ok(approver.name.clone());
                }
            }
        }
        let problem = "key belongs to no approver of this request";
        Err(Fault::field("proof", problem))
    }

    /// Checks a rule from outside.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn check(&self) -> Result<(), Fault> {
        let Self {
            mode,
            of,
            expires_ms,
            client_signers,
            wallets,
        } = self;
        if of.len() > MAX_APPROVERS {
            let problem = format_args!("more than {MAX_APPROVERS} approvers");
            return Err(Fault::field("of", problem));
        }
        let (mut names, mut ids, mut keys) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (place, approver) in of.iter().enumerate() {
            let at = |part: &str| format!("of[{place}].{part}");
            if approver.name.trim().is_empty() {
                return Err(Fault::field(at("name"), "is required"));
            }
            label(&at("name"), &approver.name, MAX_NAME)?;
            if !names.insert(&approver.name) {
                return Err(Fault::field(at("name"), "names an approver twice"));
            }
            if !(1..=MAX_KEYS).contains(&approver.keys.len()) {
                let problem = format_args!("must be 1 to {MAX_KEYS} keys");
                return Err(Fault::field(at("keys"), problem));
            }
            for (number, line) in approver.keys.iter().enumerate() {
                let at = at(&format!("keys[{number}]"));
                let key = ApproverKey::parse(line);
                let key = key.map_err(|fault| Fault::field(&at, fault.message()))?;
                // Under another credential id it is the same key.
                let is_new = keys.insert(key.public_key().to_vec());
                if !ids.insert(key.id()) || !is_new {
                    return Err(Fault::field(&at, "is named twice"));
                }
            }
        }
        if let ApprovalMode::Manual { needs } = mode {
            if of.is_empty() {
                return Err(Fault::field("of", "names no approver"));
            }
            let most = of.len().min(MAX_APPROVALS);
            if !(1..=most).contains(&usize::from(*needs)) {
                let problem = format_args!("must be 1 to {most}");
                return Err(Fault::field("needs", problem));
            }
        }
        if !EXPIRY_MS.contains(expires_ms) {
            let problem = "must be a minute to 30 days, in milliseconds";
            return Err(Fault::field("expiresMs", problem));
        }
        if client_signers.len() > MAX_CLIENT_SIGNERS {
            let problem = format_args!("more than {MAX_CLIENT_SIGNERS} client signers");
            return Err(Fault::field("clientSigners", problem));
        }
        let mut signers = BTreeSet::new();
        if let Some(place) = (client_signers.iter()).position(|it| !signers.insert(it)) {
            let at = format_args!("clientSigners[{place}]");
            return Err(Fault::field(at, "is named twice"));
        }
        check_wallets(wallets, of.len())
    }
}

/// Checks the wallets of a rule that names so many persons.
fn check_wallets(wallets: &[WalletNeeds], persons: usize) -> Result<(), Fault> {
    if wallets.len() > MAX_WALLETS {
        let problem = format_args!("more than {MAX_WALLETS} wallets");
        return Err(Fault::field("wallets", problem));
    }
    if !wallets.is_empty() && persons == 0 {
        return Err(Fault::field("of", "names no approver"));
    }
    let most = persons.min(MAX_APPROVALS);
    let mut addresses = BTreeSet::new();
    for (place, WalletNeeds { address, needs }) in wallets.iter().enumerate() {
        let at = |part: &str| format!("wallets[{place}].{part}");
        if address.is_empty() {
            return Err(Fault::field(at("address"), "is required"));
        }
        label(&at("address"), address, MAX_ADDRESS)?;
        if !addresses.insert(address) {
            return Err(Fault::field(at("address"), "is named twice"));
        }
        if !(1..=most).contains(&usize::from(*needs)) {
            let problem = format_args!("must be 1 to {most}");
            return Err(Fault::field(at("needs"), problem));
        }
    }
    Ok(())
}

/// A person has approved a request. Its constructor's caller has verified it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersonApproval {
    /// Who.
    pub person: String,
    /// When it arrived, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What it is bound by.
    pub terms: ApprovalTerms,
    /// What signers check.
    pub given: GivenApproval,
}

/// Who has to agree to a request, and who has: the rule of its vault as it was when the request came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consent {
    /// The rule.
    pub rule: ApprovalRule,
    /// The newest one of each person, in the order in which they came.
    pub given: Vec<PersonApproval>,
    /// Until when it waits for people, the last time that it does, in milliseconds since the Unix epoch. 0: it has not
    /// begun to.
    pub expires_at_ms: u64,
    /// What signers want that the rule did not, a line of each, or why it waits though enough have approved, in words for people.
    pub wanted: Option<String>,
    /// Until when signers hold it, in milliseconds since the Unix epoch; it continues then. 0: they do not.
    pub held_until_ms: u64,
}

impl Consent {
    /// Nobody was asked yet. Which client signers the request could have named is nothing to it, nor what holds for other
    /// wallets.
    pub fn new(rule: ApprovalRule) -> Self {
        Self {
            rule: ApprovalRule {
                client_signers: Vec::new(),
                wallets: Vec::new(),
                ..rule
            },
            given: Vec::new(),
            expires_at_ms: 0,
            wanted: None,
            held_until_ms: 0,
        }
    }

    /// The terms that most persons have approved of those that hold at `now_ms`; of two, the newer ones.
    pub fn terms(&self, now_ms: u64) -> Option<ApprovalTerms> {
        let terms = self.given.iter().map(|it| it.terms);
        terms
            .filter(|terms| terms.valid_until_ms > now_ms)
            .max_by_key(|terms| self.under(terms).count())
    }

    /// The approvals with these terms.
    pub fn under(&self, terms: &ApprovalTerms) -> impl Iterator<Item = &PersonApproval> {
        let terms = *terms;
        self.given.iter().filter(move |it| it.terms == terms)
    }

    /// What an order carries of it at `now_ms`.
    pub fn order_approvals(&self, now_ms: u64) -> OrderApprovals {
        let terms = self.terms(now_ms);
        terms.map_or_else(OrderApprovals::default, |terms| OrderApprovals {
            most_fee: terms.most_fee,
            valid_until_ms: terms.valid_until_ms,
            given: self.under(&terms).map(|it| it.given.clone()).collect(),
        })
    }

    /// How many persons have approved the same at `now_ms`.
    pub fn count(&self, now_ms: u64) -> usize {
        let terms = self.terms(now_ms);
        terms.map_or(0, |terms| self.under(&terms).count())
    }

    /// Whether a request that waits does so for this person at `now_ms`: the rule names the person, and no approval of the
    /// person counts.
    pub fn asks(&self, person: &str, now_ms: u64) -> bool {
        let terms = self.terms(now_ms);
        let has_given = |name: &str| {
            let mut counts = terms.iter().flat_map(|terms| self.under(terms));
            counts.any(|it| it.person == name)
        };
        let is_named = self.rule.of.iter().any(|it| it.name == person);
        // Where a signer wants more, those who have approved may have to do so once more: with a higher fee, say.
        is_named && self.held_until_ms == 0 && (self.wanted.is_some() || !has_given(person))
    }

    /// How many approvals it needs in all, as far as is known.
    pub fn required(&self, now_ms: u64) -> usize {
        let known = self.rule.needs();
        match self.wanted {
            // It waits for no approval.
            Some(_) if self.held_until_ms > 0 => known.max(self.count(now_ms)),
            // How many a signer wants it says in words.
            Some(_) => known.max(self.count(now_ms).saturating_add(1)),
            None => known,
        }
    }

    /// Whether an approval counts: of one who may, not over yet, and while people are asked.
    pub(super) fn takes(&self, approval: &PersonApproval, now_ms: u64) -> bool {
        let mut of = self.rule.of.iter();
        of.any(|it| it.name == approval.person)
            && approval.terms.valid_until_ms > now_ms
            && self.expires_at_ms > now_ms
    }

    /// With an approval more: the newest one of each person.
    pub(super) fn with(&self, approval: PersonApproval, now_ms: u64) -> Self {
        let mut consent = self.clone();
        consent.given.retain(|it| it.person != approval.person);
        consent.given.push(approval);
        if consent.is_enough(now_ms) {
            consent.wanted = None;
            // Signers say so again, of what has been approved once more.
            consent.held_until_ms = 0;
        }
        consent
    }

    /// When something is to be done for a request that waits, in milliseconds since the Unix epoch: it expires, or continues
    /// because nobody holds it any longer.
    pub fn due_ms(&self) -> u64 {
        match self.held_until_ms {
            0 => self.expires_at_ms,
            held_until_ms => self.expires_at_ms.min(held_until_ms),
        }
    }

    /// Whether signers have held it, and do not at `now_ms`.
    pub fn is_hold_over(&self, now_ms: u64) -> bool {
        (1..=now_ms).contains(&self.held_until_ms)
    }

    /// Whether enough have approved for it to continue. A signer that wants more says so itself, each time.
    pub(super) fn is_enough(&self, now_ms: u64) -> bool {
        self.count(now_ms) >= self.rule.needs().max(1)
    }

    /// People are asked from now on.
    pub(super) fn waiting(mut self, now_ms: u64) -> Self {
        self.expires_at_ms = now_ms.saturating_add(self.rule.expires_ms);
        self
    }

    /// People are asked again, because a signer wants more.
    pub(super) fn wanting(mut self, reason: String, now_ms: u64) -> Self {
        self.wanted = Some(reason);
        self.held_until_ms = 0;
        self.waiting(now_ms)
    }

    /// Signers hold it until then, although enough have approved.
    pub(super) fn held(mut self, reason: String, until_ms: u64, now_ms: u64) -> Self {
        self.wanted = Some(reason);
        self.held_until_ms = until_ms;
        // People have their time once more when it is over: what they have approved may have expired by then.
        self.waiting(until_ms.max(now_ms))
    }

    /// Signers hold it no longer.
    pub(super) fn released(mut self, now_ms: u64) -> Self {
        self.held_until_ms = 0;
        self.wanted = match self.is_enough(now_ms) {
            true => None,
            false => Some(HOLD_IS_OVER.to_owned()),
        };
        self
    }

    /// Why a request failed for which too few have agreed in time.
    pub(super) fn expired(&self, now_ms: u64) -> String {
        format!(
            "not approved in time: {} of {} approvals when it expired",
            self.count(now_ms),
            self.required(now_ms)
        )
    }
}

impl SigningRequest {
    /// Whether it waits for this person at `now_ms`.
    pub fn asks(&self, person: &str, now_ms: u64) -> bool {
        matches!(self.state, RequestState::AwaitingApproval { .. })
            && self.consent.asks(person, now_ms)
    }

    /// What a person approves of it.
    pub fn approval(&self, terms: ApprovalTerms) -> Approval {
        Approval::new(
            self.vault,
            &self.root_public_key,
            self.id,
            self.network,
            &self.address,
            &self.payload,
            terms,
        )
    }

    /// Why what people have approved is no approval of this transaction at `now_ms`: it could cost more, or too few
    /// approvals still hold. `None` when it is one, and where nobody has to approve.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the transaction is not what the network's rules made.
    pub fn beyond_approval(
        &self,
        unsigned: &Unsigned,
        now_ms: u64,
    ) -> Result<Option<String>, Fault> {
        let (needs, count) = (self.consent.rule.needs(), self.consent.count(now_ms));
        if needs == 0 {
            return Ok(None);
        }
        let terms = self.consent.terms(now_ms).filter(|_| count >= needs);
        let Some(ApprovalTerms { most_fee, .. }) = terms else {
            let problem =
                format!("{count} of {needs} approvals are still valid; the others have expired");
            return Ok(Some(problem));
        };
        let fee = self.network.rules().most_fee(&unsigned.bytes)?;
        Ok((fee > U256::from(most_fee)).then(|| {
            format!(
                "the transaction's fee could reach {fee}, above the approved {most_fee} (in the smallest unit of the \
                 coin)"
            )
        }))
    }

    /// Checks an approval that came at `now_ms`, as signers will, and says whose it is.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn check_approval(
        &self,
        terms: ApprovalTerms,
        given: GivenApproval,
        now_ms: u64,
    ) -> Result<PersonApproval, Fault> {
        let valid = |problem: &str| Err(Fault::field("validUntilMs", problem));
        if terms.valid_until_ms <= now_ms {
            return valid("is over");
        }
        if terms.valid_until_ms - now_ms > MAX_VALIDITY_MS {
            return valid("is more than 24 hours ahead");
        }
        // Before anything else is done with it.
        let alone = OrderApprovals {
            given: vec![given.clone()],
            ..OrderApprovals::default()
        };
        alone.check_bounds()?;
        let challenge = given.challenge(&self.approval(terms).id()?)?;
        let approval = PersonApproval {
            person: self.approver(&given.proof, &challenge)?,
            at_ms: now_ms,
            terms,
            given,
        };
        let orders = self.consent.with(approval.clone(), now_ms);
        orders.order_approvals(now_ms).check_bounds()?;
        Ok(approval)
    }

    /// Checks a rejection of this request, or of all that are rejected `together` and of which it is one, and says
    /// whose it is.
    ///
    /// # Errors
    /// As [`SigningRequest::check_approval`].
    pub fn check_rejection(
        &self,
        proof: &ApprovalProof,
        together: &[RequestId],
    ) -> Result<String, Fault> {
        self.approver(proof, &rejections_challenge(self.vault, together)?)
    }

    /// Whose proof it is, of those who may decide about the request.
    fn approver(&self, proof: &ApprovalProof, challenge: &[u8; 32]) -> Result<String, Fault> {
        self.consent.rule.approver(proof, challenge)
    }
}
