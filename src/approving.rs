//! What a person is shown of a signing request before approving it, and the exact bytes that are approved. The command
//! line and the console share it, so that both show the same.
//!
//! Anyone who sends the request is not believed: what is shown was decoded of the very bytes that the signature is about.

mod payments;

use std::collections::BTreeMap;

use anyhow::{Context as _, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    amount,
    approval::{Approval, ApprovalTerms, MAX_VALIDITY_MS, list_challenge, words},
    fault::Fault,
    networks::{Network, Payload, evm::batch::BatchContracts, outflow::ChainScope},
    schema::{json, wire},
};
use prost::Message as _;

pub use payments::{ContractCheck, batch_part_and_spends, caution, check_contract};

use crate::wiring::explain;

/// An hour, in milliseconds.
pub const HOUR_MS: u64 = 60 * 60 * 1000;
/// For how long an approval counts where nothing else is said.
pub const USUAL_HOURS: u64 = 23;

/// What an approval is to be bound by.
#[derive(Clone, Copy)]
pub struct WantedTerms<'a> {
    /// `None`: what others have approved.
    pub most_fee: Option<&'a str>,
    /// The end of an approval that takes over none, in milliseconds since the Unix epoch.
    pub until_ms: u64,
    /// The end is not to be that of others.
    pub own_end: bool,
    /// The person looks at what is shown, and confirms it.
    pub confirms: bool,
    /// The batch contracts whose code the person has compared.
    pub batch_contracts: &'a BatchContracts,
}

/// Of who names none.
pub static NO_BATCH_CONTRACTS: BatchContracts = BatchContracts::new();

/// A request with what is to be signed of it.
pub struct RequestToApprove {
    pub uuid: String,
    /// What is approved.
    pub approval: Approval,
    /// The chain whose coin pays its fee; `None`: it has none.
    pub pays_on: Option<ChainScope>,
    /// All of it in lines of text, for a terminal.
    pub shown: String,
}

/// What one gesture signs for all of them: the challenge, and the list that each approval then carries; empty for a single one.
///
/// # Errors
/// As [`list_challenge`].
pub fn gesture(all: &[RequestToApprove]) -> Result<([u8; 32], Vec<[u8; 32]>), Fault> {
    gesture_of(all.iter().map(|it| &it.approval))
}

/// The same of approvals.
///
/// # Errors
/// As [`list_challenge`].
pub fn gesture_of<'a>(
    all: impl Iterator<Item = &'a Approval>,
) -> Result<([u8; 32], Vec<[u8; 32]>), Fault> {
    let ids: Result<Vec<_>, _> = all.map(Approval::id).collect();
    let mut ids = ids?;
    ids.sort_unstable();
    match ids.as_slice() {
        [alone] => Ok((*alone, Vec::new())),
        several => Ok((list_challenge(several)?, ids.clone())),
    }
}

/// The requests of each call: all of one vault, with one highest fee and end. What is in each group is in its order.
pub fn calls(
    all: &[RequestToApprove],
) -> impl Iterator<Item = ((u128, u64), Vec<&RequestToApprove>)> {
    let mut groups: BTreeMap<_, Vec<&RequestToApprove>> = BTreeMap::new();
    for one in all {
        let of = &one.approval;
        let group = (of.vault, of.most_fee, of.valid_until_ms);
        groups.entry(group).or_default().push(one);
    }
    let groups = groups.into_iter();
    groups.map(|((_, most_fee, valid_until_ms), group)| ((most_fee, valid_until_ms), group))
}

/// What the bytes say that an approval of a request is about.
pub struct DecodedApproval<'a> {
    /// What it does.
    pub payload: Payload,
    /// The network of its wallet.
    pub network: Network,
    /// The bytes.
    pub subject: &'a wire::ApprovalSubject,
    /// Its fields, as JSON.
    pub fields: serde_json::Value,
}

/// Decodes what a request does.
///
/// # Errors
/// When it does not wait, or is not what it is said to be.
pub fn decode(request: &wire::SigningRequest) -> anyhow::Result<DecodedApproval<'_>> {
    let uuid = &request.uuid;
    let subject = request.approval_subject.as_ref();
    let subject = subject.with_context(|| format!("{uuid} is not waiting for approval"))?;
    let payload = Payload::decode(&subject.payload).map_err(explain)?;
    let mut networks = Network::ALL.into_iter();
    let network = networks.find(|network| network.name() == subject.network);
    let network = network.with_context(|| format!("unknown network {:?}", subject.network))?;
    payload.check_wallet(network).map_err(explain)?;
    ensure!(
        payload.from() == subject.address,
        "the payload belongs to another wallet"
    );
    let message = wire::CreateSigningRequestRequest::decode(subject.payload.as_slice())?;
    let text = json::encode(&message).map_err(explain)?;
    let mut fields: serde_json::Value = serde_json::from_str(&text)?;
    if let Some(fields) = fields.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    Ok(DecodedApproval {
        payload,
        network,
        subject,
        fields,
    })
}

/// Decodes what a request does, and says it.
///
/// # Errors
/// When it does not wait, is not what it is said to be, or the fee is missing.
pub fn asked(
    request: &wire::SigningRequest,
    terms: WantedTerms<'_>,
    now_ms: u64,
) -> anyhow::Result<RequestToApprove> {
    let WantedTerms {
        most_fee,
        until_ms,
        own_end,
        confirms,
        batch_contracts,
    } = terms;
    let uuid = request.uuid.clone();
    let DecodedApproval {
        payload,
        network,
        subject,
        fields,
    } = decode(request)?;
    let is_message = payload.kind().ends_with("Message");
    // What others have approved is what the service says of it.
    ensure!(
        confirms || is_message || most_fee.is_some(),
        "--yes requires --most-fee: without it, the service would choose the fee that you approve"
    );
    // Approvals count together when they say the same.
    let known = request.approvals.iter().rev();
    // Nor may a hostile service get an approval that signers accept long after this day.
    let holds = now_ms.saturating_add(HOUR_MS)..=now_ms.saturating_add(MAX_VALIDITY_MS);
    let mut known = known.filter(|it| !own_end && holds.contains(&it.valid_until_timestamp));
    // The newest of this fee: a newer one of another fee does not count with it.
    let known = known.find(|it| most_fee.is_none_or(|fee| fee == it.most_fee));
    let (fee, valid_until_ms) = match (known, most_fee) {
        (Some(known), _) => (known.most_fee.as_str(), known.valid_until_timestamp),
        (None, Some(fee)) => (fee, until_ms),
        (None, None) if is_message => ("0", until_ms),
        (None, None) => bail!(
            "--most-fee is required: the highest fee that you approve, in the smallest unit of the coin"
        ),
    };
    let fee = amount::parse_u128(fee).map_err(|error| anyhow::anyhow!("--most-fee: {error}"))?;
    let vault = request.vault_uuid.clone().unwrap_or_default();
    let approval = Approval::new(
        vault.parse().map_err(explain)?,
        &subject.root_public_key,
        uuid.parse().map_err(explain)?,
        network,
        &subject.address,
        &subject.payload,
        ApprovalTerms {
            most_fee: fee,
            valid_until_ms,
        },
    );
    let mut shown = format!(
        "request {uuid}\nvault   {vault}\nnetwork {}\nwallet  {}\nfee     {fee} at most, in the smallest unit\n\
         until   {} hours from now\npayload {}\nwords   {}\n{pays}{text:#}",
        network.name(),
        subject.address,
        valid_until_ms.saturating_sub(now_ms) / HOUR_MS,
        hex::encode(approval.payload_sha256),
        words(&approval.payload_sha256).join(" "),
        pays = payments::in_lines(
            &payload,
            network,
            batch_contracts,
            &request.batch_payment_uuid
        ),
        text = fields,
    );
    if let Some(notes) = request.notes.as_deref().filter(|it| !it.is_empty()) {
        shown.push_str(&format!(
            "\nnotes   {notes:?}, as the service says; they are not signed"
        ));
    }
    for said in contents(&fields) {
        let ShownContent { label, shown: text } = said;
        shown.push_str(&format!("\n{} {text:?}", label.replace("The", "the")));
    }
    Ok(RequestToApprove {
        uuid,
        approval,
        pays_on: (payload.is_transaction() && payload.pays_fee())
            .then(|| payload.outflow(network).place),
        shown: visible(&shown),
    })
}

/// Refuses one highest fee for several coins: little of one is a fortune in another.
///
/// # Errors
/// When there are several.
pub fn check_one_coin(all: &[RequestToApprove]) -> anyhow::Result<()> {
    let mut chains = all.iter().filter_map(|it| it.pays_on.as_ref());
    let Some(first) = chains.next() else {
        return Ok(());
    };
    if let Some(other) = chains.find(|it| *it != first) {
        bail!(
            "--most-fee is an amount of one coin, and these requests pay fees on {first} and on {other}: approve them \
             with a command each"
        );
    }
    Ok(())
}

/// The content of a message, or a part of it, as people read and compare it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownContent {
    /// What stands before it.
    pub label: &'static str,
    /// A text, or hex.
    pub shown: String,
}

/// What is base64 in the JSON of a payload: the text that it is, or hex. 32 bytes are shown as hex in any case, because they
/// may be the hash of something.
pub fn contents(json: &serde_json::Value) -> Vec<ShownContent> {
    let Some(fields) = json.as_object() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (name, value) in fields {
        let bytes = value.as_str().filter(|_| name == "content");
        if let Some(bytes) = bytes.and_then(|text| STANDARD.decode(text).ok()) {
            let hex = |label| ShownContent {
                label,
                shown: format!("0x{}", hex::encode(&bytes)),
            };
            match (String::from_utf8(bytes.clone()), bytes.len()) {
                (Err(_), _) => found.push(hex("The content is no text; as hex it is")),
                (Ok(text), length) => {
                    found.push(ShownContent {
                        label: "The content reads",
                        shown: text,
                    });
                    if length == 32 {
                        found.push(hex("As hex these 32 bytes are"));
                    }
                }
            }
        }
        found.extend(contents(value));
    }
    found
}

/// A text of the service's without what could make a terminal show another one: control characters, and those that
/// turn the direction of writing. Letters that look like nothing are marked, too.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '"' | '\'' | '\\' => shown.push(character),
            // Hangul fillers and the empty Braille cell: Rust takes them for letters that one can see.
            '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' | '\u{2800}' => {
                shown.extend(character.escape_unicode());
            }
            _ => shown.extend(character.escape_debug()),
        }
    }
    shown
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn terms(until_ms: u64) -> WantedTerms<'static> {
        WantedTerms {
            most_fee: None,
            until_ms,
            own_end: false,
            confirms: true,
            batch_contracts: &NO_BATCH_CONTRACTS,
        }
    }

    /// A message that says this, and what the service says of approvals.
    fn shown_by_service(content: &str, approvals: &[(u64, &str)]) -> wire::SigningRequest {
        let from = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
        let kind = wire::create_signing_request_request::Type::EvmMessage(wire::EvmMessage {
            chain_id: 1,
            from: from.into(),
            content: content.into(),
            r#type: Default::default(),
        });
        let given = |(valid_until_timestamp, most_fee): &(u64, &str)| wire::GivenApproval {
            valid_until_timestamp: *valid_until_timestamp,
            most_fee: (*most_fee).into(),
            ..Default::default()
        };
        wire::SigningRequest {
            uuid: "01020304-0506-4708-890a-0b0c0d0e0f10".into(),
            vault_uuid: Some("02020202-0202-4202-8202-020202020202".into()),
            approvals: approvals.iter().map(given).collect(),
            approval_subject: Some(wire::ApprovalSubject {
                root_public_key: vec![2; 33],
                network: Network::Evm.name().into(),
                address: from.into(),
                payload: Payload::parse(&kind).unwrap().encode(),
            }),
            ..Default::default()
        }
    }

    #[test]
    fn asked__should_take_over_no_terms_by_which_an_approval_counts_later_than_tomorrow() {
        let until_ms = NOW_MS + 23 * HOUR_MS;
        for (theirs_ms, expected) in [
            (NOW_MS + 20 * HOUR_MS, NOW_MS + 20 * HOUR_MS),
            (NOW_MS + 24 * HOUR_MS, NOW_MS + 24 * HOUR_MS),
            (NOW_MS + 24 * HOUR_MS + 1, until_ms),
            (NOW_MS + 10 * 365 * 24 * HOUR_MS, until_ms),
            (NOW_MS + HOUR_MS - 1, until_ms),
        ] {
            let request = shown_by_service("hello", &[(theirs_ms, "7")]);
            let terms = WantedTerms {
                most_fee: Some("7"),
                ..terms(until_ms)
            };
            let asked = asked(&request, terms, NOW_MS).unwrap();
            assert_eq!(asked.approval.valid_until_ms, expected, "{theirs_ms}");
            let own = WantedTerms {
                own_end: true,
                ..terms
            };
            let asked = super::asked(&request, own, NOW_MS).unwrap();
            assert_eq!(asked.approval.valid_until_ms, until_ms, "{theirs_ms}");
        }
    }

    #[test]
    fn asked__should_join_those_of_the_same_fee_whatever_a_newer_one_names() {
        let theirs_ms = NOW_MS + 20 * HOUR_MS;
        let request = shown_by_service("hello", &[(theirs_ms, "7"), (theirs_ms + 5, "8")]);
        let terms = WantedTerms {
            most_fee: Some("7"),
            ..terms(NOW_MS + 23 * HOUR_MS)
        };
        let asked = asked(&request, terms, NOW_MS).unwrap();
        assert_eq!(asked.approval.valid_until_ms, theirs_ms);
    }

    #[test]
    fn most_fee__should_be_of_one_coin() {
        let from = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
        let pays = |chain_id: u64| {
            let kind =
                wire::create_signing_request_request::Type::EvmSendNative(wire::EvmSendNative {
                    chain_id,
                    from: from.into(),
                    to: from.into(),
                    value: "1".into(),
                    ..Default::default()
                });
            let mut request = shown_by_service("hello", &[]);
            request.approval_subject.as_mut().unwrap().payload =
                Payload::parse(&kind).unwrap().encode();
            let terms = WantedTerms {
                most_fee: Some("7"),
                ..terms(NOW_MS + HOUR_MS)
            };
            asked(&request, terms, NOW_MS).unwrap()
        };
        let message = shown_by_service("hello", &[]);
        let message = asked(&message, terms(NOW_MS + HOUR_MS), NOW_MS).unwrap();
        check_one_coin(&[pays(1), message, pays(1)]).unwrap();
        let problem = check_one_coin(&[pays(1), pays(56)])
            .unwrap_err()
            .to_string();
        assert!(problem.contains("on evm:1 and on evm:56"), "{problem}");
    }

    #[test]
    fn asked__should_let_the_service_choose_no_fee_that_nobody_looks_at() {
        let from = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
        let kind = wire::create_signing_request_request::Type::EvmSendNative(wire::EvmSendNative {
            chain_id: 1,
            from: from.into(),
            to: from.into(),
            value: "1".into(),
            ..Default::default()
        });
        // Nobody has approved this: the service says so.
        let said = [(
            NOW_MS + 20 * HOUR_MS,
            "340282366920938463463374607431768211455",
        )];
        let mut request = shown_by_service("hello", &said);
        request.approval_subject.as_mut().unwrap().payload =
            Payload::parse(&kind).unwrap().encode();
        let unseen = WantedTerms {
            confirms: false,
            ..terms(NOW_MS + HOUR_MS)
        };
        let problem = asked(&request, unseen, NOW_MS).map(|it| it.shown);
        let problem = problem.unwrap_err().to_string();
        assert!(
            problem.starts_with("--yes requires --most-fee"),
            "{problem}"
        );
        let named = WantedTerms {
            most_fee: Some("9"),
            ..unseen
        };
        let asked = asked(&request, named, NOW_MS).unwrap();
        assert_eq!(asked.approval.most_fee, 9);
        // Who confirms is shown it.
        let seen = super::asked(&request, terms(NOW_MS + HOUR_MS), NOW_MS).unwrap();
        assert!(seen.shown.contains(said[0].1), "{}", seen.shown);
    }

    #[test]
    fn visible__should_mark_letters_that_are_blank() {
        for blank in ['\u{115f}', '\u{1160}', '\u{3164}', '\u{ffa0}', '\u{2800}'] {
            let shown = visible(&format!("a{blank}b"));
            assert_eq!(shown, format!("a\\u{{{:x}}}b", u32::from(blank)));
        }
        assert_eq!(
            visible("\u{d55c}\u{ae00} \u{2801}"),
            "\u{d55c}\u{ae00} \u{2801}"
        );
    }

    #[test]
    fn asked__should_show_the_text_that_is_signed_and_nothing_that_turns_it() {
        let request = shown_by_service("pay \u{202e}EVE\u{1b}[2J\nnow", &[]);
        let shown = asked(&request, terms(NOW_MS + HOUR_MS), NOW_MS)
            .unwrap()
            .shown;
        let text = r#"the content reads "pay \u{202e}EVE\u{1b}[2J\nnow""#;
        assert!(shown.ends_with(text), "{shown}");
        assert_eq!(visible("a\u{9b}b\u{2066}c\nd"), "a\\u{9b}b\\u{2066}c\nd");
    }

    #[test]
    fn asked__should_show_every_row_of_a_batch_call_and_whether_the_contract_is_known() {
        let from = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
        let contract = "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359";
        let batch = |rows: u64, token: Option<&str>| {
            let recipients = (0..rows).map(|row| wire::BatchPaymentRecipient {
                address: format!("0x{:040x}", 0xa000 + row),
                amount: "1500000000000000000".into(),
                notes: None,
            });
            let recipients = recipients.collect();
            let kind = match token {
                None => covault_core::batch::BatchWireKind::EvmBatchSendNative(
                    wire::EvmBatchSendNative {
                        chain_id: 1,
                        from: from.into(),
                        recipients,
                    },
                ),
                Some(token) => {
                    covault_core::batch::BatchWireKind::EvmBatchSendErc20(wire::EvmBatchSendErc20 {
                        chain_id: 1,
                        from: from.into(),
                        token_contract_address: token.into(),
                        recipients,
                    })
                }
            };
            covault_core::batch::BatchPayload::parse(&kind).unwrap()
        };
        let shown = |payload: &Payload, known: &BatchContracts, uuid: &str| {
            let mut request = shown_by_service("hello", &[]);
            request.batch_payment_uuid = uuid.to_owned();
            request.approval_subject.as_mut().unwrap().payload = payload.encode();
            let terms = WantedTerms {
                most_fee: Some("7"),
                batch_contracts: known,
                ..terms(NOW_MS + HOUR_MS)
            };
            asked(&request, terms, NOW_MS).unwrap().shown
        };
        let known = BatchContracts::from([(
            1,
            covault_core::networks::evm::parse_address(contract).unwrap(),
        )]);
        let send = covault_core::batch::BatchStage::Send;
        let native = batch(254, None).payload(send, Some(contract)).unwrap();
        let uuid = "0190aaaa-0000-7000-8000-000000000001";
        let text = shown(&native, &known, uuid);
        for part in [
            format!("batch   {uuid}, as the service says"),
            format!("calls   {contract} on evm:1, the batch contract that you named"),
            "pays 1   1.5 ETH (1500000000000000000) to 0x000000000000000000000000000000000000A000"
                .to_owned(),
            "pays 254 1.5 ETH (1500000000000000000) to 0x000000000000000000000000000000000000A0FD"
                .to_owned(),
            "in all  381 ETH (381000000000000000000)".to_owned(),
        ] {
            let (text, part) = (text.to_lowercase(), part.to_lowercase());
            assert!(text.contains(&part), "{part}: {text}");
        }
        assert!(!text.contains("caution"), "{text}");
        // The same rows, and someone else's contract, or nobody knows.
        for (uuid, known) in [
            (uuid, &BatchContracts::new()),
            ("", &BatchContracts::from([(2, known.first().unwrap().1)])),
        ] {
            let text = shown(&native, known, uuid);
            assert!(
                text.contains("NOT one that --batch-contract names"),
                "{text}"
            );
            assert!(text.contains("caution"), "{text}");
            assert!(text.contains("pays 254 1.5 ETH"), "{text}");
            assert_eq!(text.contains("batch   none"), uuid.is_empty(), "{text}");
        }
        let token = "0xdAC17F958D2ee523a2206206994597C13D831ec7";
        let tokens = batch(2, Some(token));
        let text = shown(&tokens.payload(send, Some(contract)).unwrap(), &known, uuid);
        let row =
            format!("pays 2   1500000000000000000 of evm:1/{token}, in its smallest unit, to 0x");
        assert!(text.contains(&row), "{text}");
        let allowance = covault_core::batch::BatchStage::Allowance;
        let allowance = tokens.payload(allowance, Some(contract)).unwrap();
        let text = shown(&allowance, &known, uuid);
        let said = format!(
            "lets    {contract}, the batch contract that you named, take 3000000000000000000 of evm:1/{token}"
        );
        assert!(text.contains(&said), "{text}");
        assert!(!text.contains("\npays"), "{text}");
        let text = shown(&allowance, &BatchContracts::new(), uuid);
        assert!(
            text.contains("which is NOT one that --batch-contract names, take"),
            "{text}"
        );
    }
}
