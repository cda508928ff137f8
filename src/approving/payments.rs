//! What a request pays, and whether the contract is known that a batch payment is made with.

use std::collections::BTreeMap;

use covault_core::{
    amount::U256,
    networks::{
        Network, Payload,
        evm::{
            Address,
            batch::{BatchContracts, BatchPart},
        },
        outflow::{Asset, ChainScope, ContentKind, Outflow, Spend},
    },
};

use crate::units::in_units;

/// Payments that are listed. A batch has fewer; a call of another contract may have thousands.
const LISTED: usize = 300;

/// What may happen beside what is listed; empty where nothing can.
pub fn caution(nature: ContentKind) -> &'static str {
    match nature {
        ContentKind::Transfer | ContentKind::Message => "",
        ContentKind::Custom => {
            "This transaction calls a contract: it may do more than what is listed here."
        }
        ContentKind::TypedData => {
            "Contracts read this: it may permit others to take what the wallet has."
        }
        ContentKind::Raw => "These bytes may be anything, a transaction too.",
    }
}

/// [`batch_part`], and what it pays if that contract is a batch contract.
pub fn batch_part_and_spends(payload: &Payload) -> (Option<(u64, Address, BatchPart)>, Vec<Spend>) {
    let (Payload::Evm(evm), Some(part)) = (payload, batch_part(payload)) else {
        return (None, Vec::new());
    };
    let outflow = evm.batch_outflow(&BatchContracts::from([(part.0, part.1)]));
    (Some(part), outflow.map(|it| it.spends).unwrap_or_default())
}

/// What a payload would do as a part of a batch payment, and with which contract of which chain.
fn batch_part(payload: &Payload) -> Option<(u64, Address, BatchPart)> {
    match payload {
        Payload::Evm(payload) => payload.batch_part(),
        _ => None,
    }
}

/// Whether the contract of a batch payment is the right one, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContractCheck {
    /// What it does with which contract.
    pub sentence: String,
    /// The contract is not the one that is configured.
    pub is_bad: bool,
}

/// Compares the contract of a part of a batch payment with the one that is configured for its chain. `None` for what is
/// no part of one: an allowance for anyone else is a call like others.
pub fn check_contract(
    part: &(u64, Address, BatchPart),
    configured: Option<&str>,
    is_of_batch: bool,
) -> Option<ContractCheck> {
    let (chain, contract, part) = part;
    let contract = contract.to_checksum(None);
    let is_right = configured == Some(contract.as_str());
    let place = ChainScope::evm(*chain);
    let sentence = match part {
        BatchPart::Allowance { .. } if !is_right && !is_of_batch => return None,
        BatchPart::Payment(_) if is_right => format!(
            "It calls {contract}, which this service is configured with as batch contract of {place}: that pays the rows \
             that are listed and does nothing else."
        ),
        BatchPart::Allowance { token, amount } if is_right => format!(
            "It lets {contract}, which this service is configured with as batch contract of {place}, take {amount} of the \
             token {token} in all, in the smallest unit. The contract takes of its caller alone."
        ),
        BatchPart::Payment(_) => format!(
            "It calls {contract}, which is NOT the batch contract of {place} that this service is configured with ({}): \
             it may keep all that it is sent.",
            configured.unwrap_or("none")
        ),
        BatchPart::Allowance { token, amount } => format!(
            "It lets {contract} take {amount} of the token {token}, in the smallest unit. That is NOT the batch contract of \
             {place} that this service is configured with ({}).",
            configured.unwrap_or("none")
        ),
    };
    let without = match (is_of_batch, part) {
        (false, BatchPart::Payment(_)) => {
            " This service made it for no batch payment: whoever asked has put the rows together."
        }
        _ => "",
    };
    Some(ContractCheck {
        sentence: format!("{sentence}{without}"),
        is_bad: !is_right,
    })
}

/// What leaves the wallet, line by line, each with its end; nothing for what pays nobody. `known`: the batch contracts whose
/// code the reader has compared. `batch`: the batch payment that the service says it is for; empty without one.
pub fn in_lines(
    payload: &Payload,
    network: Network,
    known: &BatchContracts,
    batch: &str,
) -> String {
    let mut lines = Vec::new();
    let part = batch_part(payload);
    let mut is_only_rows = false;
    match (batch, &part) {
        ("", Some((_, _, BatchPart::Payment(_)))) => {
            lines.push("batch   none: the service made it for no batch payment".to_owned());
        }
        ("", _) => {}
        (batch, _) => {
            lines.push(format!(
                "batch   {batch}, as the service says; compare it with covault batch show {batch}"
            ));
        }
    }
    if let Some((chain, contract, part)) = &part {
        let is_known = known.contains(&(*chain, *contract));
        is_only_rows = is_known && matches!(part, BatchPart::Payment(_));
        let place = ChainScope::evm(*chain);
        lines.push(match (part, is_known) {
            (BatchPart::Payment(_), true) => format!(
                "calls   {contract} on {place}, the batch contract that you named: it pays what is listed and does nothing else"
            ),
            (BatchPart::Payment(_), false) => format!(
                "calls   {contract} on {place}, which is NOT one that --batch-contract names: it may keep all that it is sent"
            ),
            (BatchPart::Allowance { token, amount }, true) => format!(
                "lets    {contract}, the batch contract that you named, take {amount} of {place}/{token} in all: it takes of \
                 its caller alone"
            ),
            (BatchPart::Allowance { token, amount }, false) => format!(
                "lets    {contract}, which is NOT one that --batch-contract names, take {amount} of {place}/{token} in all"
            ),
        });
    }
    let of_batch = match payload {
        Payload::Evm(payload) => payload.batch_outflow(known),
        _ => None,
    };
    let Outflow { nature, spends, .. } = payload.outflow(network);
    let spends = of_batch.map_or(spends, |of_batch| of_batch.spends);
    let caution = caution(nature);
    if !caution.is_empty() && payload.is_transaction() && !is_only_rows {
        lines.push(format!("caution {caution}"));
    }
    let mut sums: BTreeMap<&Asset, U256> = BTreeMap::new();
    for (number, spend) in (1_usize..).zip(&spends) {
        let sum = sums.entry(&spend.asset).or_default();
        *sum = sum.saturating_add(spend.amount);
        if number <= LISTED {
            lines.push(payment(number, spend));
        }
    }
    if spends.len() > LISTED {
        let more = spends.len().saturating_sub(LISTED);
        lines.push(format!(
            "        and {more} more payments, which are not listed"
        ));
    }
    if spends.len() > 1 {
        let sums = sums.into_iter();
        lines.extend(sums.map(|(asset, sum)| format!("in all  {}", units(asset, sum))));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

fn payment(number: usize, spend: &Spend) -> String {
    let to = spend.recipient.as_deref().unwrap_or("nobody can tell whom");
    let comma = match spend.asset.token {
        Some(_) => ",",
        None => "",
    };
    format!(
        "pays {number:<3} {}{comma} to {to}",
        units(&spend.asset, spend.amount)
    )
}

/// `1.5 ETH (1500000000000000000)`
fn units(asset: &Asset, amount: U256) -> String {
    match in_units(asset, amount) {
        text if text.is_empty() => format!("{amount} of {asset}, in its smallest unit"),
        text => format!("{text} ({amount})"),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn address(last: u8) -> Address {
        Address::with_last_byte(last)
    }

    #[test]
    fn check_contract__should_say_where_the_contract_is_another_one() {
        let rows = vec![(address(1), U256::from(5))];
        let call = covault_core::networks::evm::batch::BatchCall { token: None, rows };
        let part = (1, address(7), BatchPart::Payment(call));
        let configured = address(7).to_checksum(None);
        let right = check_contract(&part, Some(&configured), true).unwrap();
        assert!(
            !right.is_bad && right.sentence.contains("does nothing else"),
            "{right:?}"
        );
        assert!(!right.sentence.contains("no batch payment"), "{right:?}");
        // Someone else's rows with the right contract, and anyone's contract.
        let own = check_contract(&part, Some(&configured), false).unwrap();
        assert!(
            !own.is_bad && own.sentence.contains("made it for no batch payment"),
            "{own:?}"
        );
        for other in [None, Some(address(8).to_checksum(None))] {
            let bad = check_contract(&part, other.as_deref(), true).unwrap();
            assert!(
                bad.is_bad && bad.sentence.contains("is NOT the batch contract"),
                "{bad:?}"
            );
        }
        let part = BatchPart::Allowance {
            token: address(9),
            amount: U256::from(5),
        };
        let part = (1, address(7), part);
        let right = check_contract(&part, Some(&configured), true).unwrap();
        assert!(
            !right.is_bad && right.sentence.contains("takes of its caller alone"),
            "{right:?}"
        );
        assert!(check_contract(&part, None, true).unwrap().is_bad);
        // Any other allowance is a call like others.
        assert_eq!(check_contract(&part, None, false), None);
    }
}
