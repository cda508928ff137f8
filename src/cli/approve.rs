//! `covault approve`, `reject`, `pending`: what people do with requests that wait for them, on their own machines.
//!
//! The service is not believed: what is shown is what was decoded here, of the very bytes that the signature is about.

mod calls;

use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::operations::{GetPendingSigningRequests, GetSigningRequestDetails};
use covault_core::{
    amount,
    approval::{Approval, ApprovalTerms, MAX_VALIDITY_MS, SSH_NAMESPACE, list_challenge},
    ids::{RequestId, VaultId},
    networks::{Network, Payload, outflow::ChainScope},
    port::Clock as _,
    schema::{json, wire},
};
use prost::Message as _;

use super::{
    answer_json,
    client::{AdminClient, PlatformArgs},
    print_line,
};
use crate::{adapters::SystemClock, wiring::explain};

const HOUR_MS: u64 = 60 * 60 * 1000;
/// For how long an approval counts where nothing else is said.
const USUAL_HOURS: u64 = 23;

/// Approve signing requests with your own key.
///
/// Shows what each request does, decoded locally from the bytes that are signed, and asks for confirmation. Then
/// ssh-keygen signs: it asks for the key's passphrase, or for a touch of the security key. One signature covers all
/// requests.
#[derive(Debug, clap::Args)]
pub struct ApproveArgs {
    /// The requests.
    #[arg(value_name = "UUID", required = true)]
    uuids: Vec<String>,
    /// Your private key (ed25519, sk-ed25519, sk-ecdsa), or its .pub file where ssh-agent has it.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The highest network fee that you approve, in the smallest unit of the coin (wei, satoshi, lamport). Default:
    /// what others have approved, and 0 for messages. Required with --yes, but for messages.
    #[arg(long, value_name = "AMOUNT")]
    most_fee: Option<String>,
    /// For how many hours the approval counts; at most 24. Default: as long as what others have approved, else 23.
    #[arg(long, value_name = "HOURS")]
    valid_hours: Option<u64>,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
    /// Print the answers as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: PlatformArgs,
}

/// Reject signing requests: they end for good.
#[derive(Debug, clap::Args)]
pub struct RejectArgs {
    /// The requests. One signature covers up to 100 of one vault.
    #[arg(value_name = "UUID", required = true)]
    uuids: Vec<String>,
    /// Your private key, so that the audit log names you; without it, it names the token.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: PlatformArgs,
}

/// List the signing requests that wait for approval, in order of expiry.
#[derive(Debug, clap::Args)]
pub struct PendingArgs {
    /// Of this vault only.
    #[arg(long, value_name = "UUID")]
    vault: Option<String>,
    /// The last request of the previous page: a page has 100.
    #[arg(long, value_name = "UUID")]
    after: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: PlatformArgs,
}

/// What an approval is to be bound by.
#[derive(Clone, Copy)]
struct WantedTerms<'a> {
    /// `None`: what others have approved.
    most_fee: Option<&'a str>,
    until_ms: u64,
    /// The end is not to be that of others.
    own_end: bool,
    /// The person looks at what is shown, and confirms it.
    confirms: bool,
}

/// A request with what is to be signed of it.
struct Asked {
    uuid: String,
    approval: Approval,
    /// The chain whose coin pays its fee; `None`: it has none.
    pays_on: Option<ChainScope>,
    shown: String,
}

pub async fn approve(args: ApproveArgs) -> anyhow::Result<()> {
    let client = args.service.client()?;
    let now_ms = SystemClock.now_ms();
    let valid_ms = args
        .valid_hours
        .unwrap_or(USUAL_HOURS)
        .saturating_mul(HOUR_MS);
    ensure!(
        (1..=MAX_VALIDITY_MS).contains(&valid_ms),
        "--valid-hours must be 1 to 24"
    );
    let terms = WantedTerms {
        most_fee: args.most_fee.as_deref(),
        until_ms: now_ms.saturating_add(valid_ms),
        own_end: args.valid_hours.is_some(),
        confirms: !args.yes,
    };
    let mut all = Vec::new();
    for uuid in &args.uuids {
        let request = details(&client, uuid).await?;
        let asked = asked(&request, terms, now_ms)?;
        eprintln!("{}", asked.shown);
        all.push(asked);
    }
    if args.most_fee.is_some() {
        check_one_coin(&all)?;
    }
    if !args.yes {
        confirm()?;
    }
    let ids: Result<Vec<_>, _> = all.iter().map(|it| it.approval.id()).collect();
    let mut ids = ids.map_err(explain)?;
    ids.sort_unstable();
    let (challenge, list) = match ids.as_slice() {
        [alone] => (*alone, Vec::new()),
        several => (list_challenge(several).map_err(explain)?, ids.clone()),
    };
    let proof = sign(&args.key, &challenge)?;
    let results = calls::approve(&client, &all, &list, &proof, args.json).await?;
    results.end(all.len(), "approved")
}

pub async fn reject(args: RejectArgs) -> anyhow::Result<()> {
    let client = args.service.client()?;
    let mut vaults: BTreeMap<VaultId, Vec<RequestId>> = BTreeMap::new();
    for uuid in &args.uuids {
        let request = details(&client, uuid).await?;
        let vault = request.vault_uuid.unwrap_or_default();
        let vault = vault.parse().map_err(explain)?;
        let id = request.uuid.parse().map_err(explain)?;
        vaults.entry(vault).or_default().push(id);
    }
    let results = calls::reject(&client, &vaults, args.key.as_deref(), args.json).await?;
    results.end(args.uuids.len(), "rejected")
}

pub async fn pending(args: PendingArgs) -> anyhow::Result<()> {
    let request = wire::GetPendingSigningRequestsRequest {
        vault_uuid: args.vault.unwrap_or_default(),
        limit: None,
        after_uuid: args.after.unwrap_or_default(),
    };
    let client = args.service.client()?;
    let answer = client.call::<GetPendingSigningRequests>(&request).await?;
    if args.json {
        return answer_json(&answer);
    }
    if answer.signing_requests.is_empty() {
        eprintln!("no request is waiting for approval");
    }
    for request in answer.signing_requests {
        let given: Vec<_> = request
            .approvals
            .iter()
            .map(|it| it.person.as_str())
            .collect();
        let given = match given.join(", ") {
            names if names.is_empty() => "nobody yet".to_owned(),
            names => names,
        };
        print_line(visible(&format!(
            "{}  {} more to approve; approved by {given}  {}",
            request.uuid, request.remaining_approval_count, request.approval_wanted
        )));
    }
    Ok(())
}

pub(super) async fn details(
    client: &AdminClient,
    uuid: &str,
) -> anyhow::Result<wire::SigningRequest> {
    let request = wire::GetSigningRequestDetailsRequest {
        uuid: uuid.to_owned(),
    };
    let answer = client.call::<GetSigningRequestDetails>(&request).await?;
    let request = answer
        .signing_request
        .context("the response has no request")?;
    // What is signed must be about what was asked for.
    ensure!(
        request.uuid.eq_ignore_ascii_case(uuid),
        "the response shows another request"
    );
    Ok(request)
}

/// Decodes what a request does, and says it.
fn asked(
    request: &wire::SigningRequest,
    terms: WantedTerms<'_>,
    now_ms: u64,
) -> anyhow::Result<Asked> {
    let WantedTerms {
        most_fee,
        until_ms,
        own_end,
        confirms,
    } = terms;
    let uuid = request.uuid.clone();
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
    let known = known
        .next()
        .filter(|it| most_fee.is_none_or(|fee| fee == it.most_fee));
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
    let decoded = wire::CreateSigningRequestRequest::decode(subject.payload.as_slice())?;
    let text = json::encode(&decoded).map_err(explain)?;
    let mut text: serde_json::Value = serde_json::from_str(&text)?;
    if let Some(fields) = text.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let mut shown = format!(
        "request {uuid}\nvault   {vault}\nnetwork {}\nwallet  {}\nfee     {fee} at most, in the smallest unit\n\
         until   {} hours from now\n{text:#}",
        network.name(),
        subject.address,
        valid_until_ms.saturating_sub(now_ms) / HOUR_MS,
    );
    for said in contents(&text) {
        shown.push_str(&format!("\nthe content reads {said:?}"));
    }
    Ok(Asked {
        uuid,
        approval,
        pays_on: (payload.is_transaction() && payload.pays_fee())
            .then(|| payload.outflow(network).place),
        shown: visible(&shown),
    })
}

/// Refuses one highest fee for several coins: little of one is a fortune in another.
fn check_one_coin(all: &[Asked]) -> anyhow::Result<()> {
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

/// What is base64 in the JSON of a payload, and a text.
fn contents(json: &serde_json::Value) -> Vec<String> {
    let Some(fields) = json.as_object() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (name, value) in fields {
        let bytes = value.as_str().filter(|_| name == "content");
        let bytes = bytes.and_then(|text| STANDARD.decode(text).ok());
        found.extend(bytes.and_then(|bytes| String::from_utf8(bytes).ok()));
        found.extend(contents(value));
    }
    found
}

/// A text of the service's without what could make a terminal show another one: control characters, and those that
/// turn the direction of writing.
pub(super) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '"' | '\'' | '\\' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    shown
}

pub(super) fn confirm() -> anyhow::Result<()> {
    ensure!(
        std::io::stdin().is_terminal(),
        "standard input is not a terminal: --yes approves what is shown"
    );
    eprint!("Approve? Type yes: ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    ensure!(answer.trim() == "yes", "not approved");
    Ok(())
}

fn sign(key: &Path, challenge: &[u8; 32]) -> anyhow::Result<wire::PersonProof> {
    let signature = ssh_signature(key, challenge)?;
    Ok(wire::PersonProof {
        r#type: Some(wire::person_proof::Type::Ssh(signature)),
    })
}

/// Has ssh-keygen sign.
pub(super) fn ssh_signature(key: &Path, challenge: &[u8; 32]) -> anyhow::Result<String> {
    let mut child = Command::new("ssh-keygen")
        .args(["-q", "-Y", "sign", "-n", SSH_NAMESPACE, "-f"])
        .arg(key)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("ssh-keygen (OpenSSH 8.2 or later) could not be started")?;
    let mut input = child.stdin.take().context("no input of ssh-keygen")?;
    input.write_all(challenge)?;
    drop(input);
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "ssh-keygen did not sign with {}",
        key.display()
    );
    Ok(String::from_utf8(output.stdout)?)
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
    fn asked__should_show_the_text_that_is_signed_and_nothing_that_turns_it() {
        let request = shown_by_service("pay \u{202e}EVE\u{1b}[2J\nnow", &[]);
        let shown = asked(&request, terms(NOW_MS + HOUR_MS), NOW_MS)
            .unwrap()
            .shown;
        let text = r#"the content reads "pay \u{202e}EVE\u{1b}[2J\nnow""#;
        assert!(shown.ends_with(text), "{shown}");
        assert_eq!(visible("a\u{9b}b\u{2066}c\nd"), "a\\u{9b}b\\u{2066}c\nd");
    }
}
