//! `covault policy check FILE --request UUID`: who is missing.

use anyhow::Context as _;
use covault_core::{
    amount::{U256, parse_u256},
    ids::VaultId,
    networks::{Network, Payload},
    port::Clock as _,
    schema::wire,
};
use covault_mpc::policy::RuleProgress;

use super::{Asked, CheckPolicyArgs, own_wallets};
use crate::{
    adapters::SystemClock,
    cli::{approve, client::PlatformArgs, print_line},
    wiring::explain,
};

/// A request as the service tells of it.
pub(super) struct FetchedRequest {
    vault: VaultId,
    network: Network,
    payload: Payload,
    /// The highest fee that those have named who have approved.
    approved_fee: Option<U256>,
    /// The approvals, in order. A signer takes only those together that name one fee and one
    /// end.
    pub(super) approved: Vec<String>,
}

impl FetchedRequest {
    /// Asks the service for it.
    ///
    /// # Errors
    /// When the service has no such request, or it does not wait for people, or cannot be read.
    pub(super) async fn load(service: PlatformArgs, uuid: &str) -> anyhow::Result<Self> {
        let request = approve::details(&service.client()?, uuid).await?;
        let subject = request.approval_subject.as_ref().with_context(|| {
            format!("{uuid} is not waiting for approval; judge its payload with --payload")
        })?;
        let payload = Payload::decode(&subject.payload).map_err(explain)?;
        let mut networks = Network::ALL.into_iter();
        let network = networks.find(|network| network.name() == subject.network);
        let network = network.with_context(|| format!("unknown network {:?}", subject.network))?;
        payload.check_wallet(network).map_err(explain)?;
        let vault = request.vault_uuid.as_deref().unwrap_or_default();
        let now_ms = SystemClock.now_ms();
        // Approvals that count together: of one fee and one end, the most of them.
        let terms = |it: &wire::GivenApproval| (it.most_fee.clone(), it.valid_until_timestamp);
        let valid = request
            .approvals
            .iter()
            .filter(|it| it.valid_until_timestamp > now_ms);
        let valid: Vec<_> = valid.collect();
        let count = |of: &wire::GivenApproval| {
            let same = valid.iter().filter(|it| terms(it) == terms(of));
            same.count()
        };
        let best = valid.iter().max_by_key(|it| count(it)).map(|it| terms(it));
        let (counted, others): (Vec<_>, Vec<_>) = request
            .approvals
            .iter()
            .partition(|it| best.as_ref() == Some(&terms(it)) && it.valid_until_timestamp > now_ms);
        for other in others {
            print_line(format_args!(
                "the approval of {} does not count with the others: it has expired, or names another fee or end",
                other.person
            ));
        }
        let approved_fee = best.map(|(fee, _)| parse_u256(&fee)).transpose()?;
        Ok(Self {
            vault: vault.parse().map_err(explain)?,
            network,
            payload,
            approved_fee,
            approved: counted.into_iter().map(|it| it.person.clone()).collect(),
        })
    }

    /// What is to be judged of it.
    ///
    /// # Errors
    /// When an argument is wrong.
    pub(super) fn asked(&self, args: &CheckPolicyArgs) -> anyhow::Result<Asked<'_>> {
        Ok(Asked {
            vault: self.vault,
            network: self.network,
            payload: &self.payload,
            fee: args.fee.or(self.approved_fee),
            own_wallets: own_wallets(args, self.network)?,
        })
    }
}

/// How far a rule is met, in words.
pub(super) fn lines(rule: &RuleProgress, approved: &[String]) -> Vec<String> {
    let RuleProgress {
        approved: of_it,
        others,
        missing,
        ..
    } = rule;
    let mut lines = Vec::new();
    if !of_it.is_empty() {
        lines.push(format!("approved: {}", of_it.join(", ")));
    }
    let strangers = approved.iter().filter(|it| !of_it.contains(it));
    let strangers: Vec<_> = strangers.map(String::as_str).collect();
    if !strangers.is_empty() {
        lines.push(format!("not named by this rule: {}", strangers.join(", ")));
    }
    lines.push(match missing {
        0 => "met, if each was given in a way that the rule accepts".to_owned(),
        _ => format!("missing: {missing} of {}", others.join(", ")),
    });
    lines
}
