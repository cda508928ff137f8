//! Forwarded commands and answers of every kind must be read for ever: a rolling restart has both versions at
//! once. When a sample is missing the test fails and prints what it would hold.

#![allow(non_snake_case)]

use std::{fs, path::PathBuf};

use covault_core::order::Generation;

use super::*;
use crate::gateway::{KeyView, WorkView};

/// The bytes are those of the sample, and reading them gives what is written like them again.
fn check(name: &str, bytes: &[u8], again: impl Fn(&[u8]) -> Vec<u8>) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/wire")
        .join(format!("forwarded-command-v1-{name}.hex"));
    let bytes = hex::encode(bytes);
    let sample = fs::read_to_string(&path)
        .unwrap_or_else(|_| panic!("{} is missing; it would hold\n{bytes}", path.display()));
    assert_eq!(sample.trim(), bytes, "{name}: it is written differently");
    let sample = hex::decode(sample.trim()).unwrap();
    assert_eq!(again(&sample), sample, "{name}: it is read differently");
}

fn commands() -> Vec<(&'static str, Command)> {
    let vault = || VaultId::from_bytes([7; 16]).to_string();
    let nodes = vec![NodeId([1; 32]), NodeId([2; 32])];
    vec![
        (
            "create-wallet",
            Command::CreateWallet(wire::CreateWalletRequest {
                vault_uuid: vault(),
                name: "n".into(),
                network_type: wire::NetworkType::Evm.into(),
                ..Default::default()
            }),
        ),
        (
            "update-wallet",
            Command::UpdateWallet(wire::UpdateWalletRequest {
                address: "0xaa".into(),
                ..Default::default()
            }),
        ),
        (
            "create-signing-request",
            Command::CreateSigningRequest(wire::CreateSigningRequestRequest {
                notes: Some("n".into()),
                ..Default::default()
            }),
        ),
        ("reject", Command::RejectSigningRequest { uuid: vault() }),
        (
            "create-batch",
            Command::CreateBatchPayment(wire::CreateBatchPaymentRequest {
                name: "n".into(),
                ..Default::default()
            }),
        ),
        (
            "create-vault",
            Command::CreateVault {
                name: "main".into(),
                threshold: 2,
                signers: nodes.clone(),
                ecdsa: Scheme::Dkls23,
            },
        ),
        (
            "replace-signers",
            Command::ReplaceSigners {
                name: "main".into(),
                threshold: 2,
                signers: nodes.clone(),
                ecdsa: Scheme::Dkls23,
            },
        ),
        (
            "reshare",
            Command::ReshareVault {
                vault: vault(),
                reshare: Reshare {
                    to: Some((2, nodes.clone())),
                    lost: vec![NodeId([3; 32])],
                    schemes: vec![Scheme::FrostEd25519],
                },
            },
        ),
        ("cancel-reshare", Command::CancelReshare { vault: vault() }),
        (
            "backup",
            Command::BackupVault {
                vault: vault(),
                recipients: vec!["age1".into()],
            },
        ),
        (
            "create-deposit-wallet",
            Command::CreateDepositWallet(wire::CreateDepositWalletRequest {
                r#ref: "r".into(),
                ..Default::default()
            }),
        ),
    ]
}

#[test]
fn forwarded_commands__should_stay_readable() {
    for (number, (name, command)) in commands().into_iter().enumerate() {
        let forwarded = ForwardedCommand {
            recipient_version: 9,
            caller: Caller {
                token: TokenId::from_bytes([1; 16]),
                vaults: match number % 2 {
                    0 => VaultScope::All,
                    _ => VaultScope::Only(vec![VaultId::from_bytes([7; 16])]),
                },
                access: Access::Full,
                operator: number % 3 == 0,
                request_id: "r".into(),
            },
            command,
            idempotency: (number % 2 == 0).then(|| IdempotencyKey {
                key: "k".into(),
                body_hash: [4; 32],
            }),
        };
        let bytes = encode_command(&forwarded).unwrap();
        check(name, &bytes, |bytes| {
            encode_command(&decode_command(bytes).unwrap()).unwrap()
        });
    }
}

#[test]
fn answers__should_stay_readable() {
    let view = VaultView {
        id: VaultId::from_bytes([7; 16]),
        name: "main".into(),
        threshold: 2,
        signers: vec![NodeId([1; 32])],
        ready: true,
        failed_reason: None,
        problem: Some("p".into()),
        keys: vec![KeyView {
            scheme: Scheme::Dkls23,
            generation: Some(Generation {
                epoch: 1,
                threshold: 2,
                holders: vec![NodeId([1; 32])],
            }),
            work: Some(WorkView::Telling),
            problem: None,
            unconfirmed: vec![],
            leftover: vec![NodeId([2; 32])],
        }],
    };
    let backup = |backup| ShareBackup {
        node: NodeId([1; 32]),
        name: "n".into(),
        scheme: Scheme::Dkls23,
        epoch: 1,
        threshold: 2,
        backup,
    };
    let receipts = vec![
        ("wallet", Receipt::Wallet(wire::Wallet::default())),
        (
            "signing-request",
            Receipt::SigningRequest(Box::new(wire::SigningRequest {
                uuid: "u".into(),
                ..Default::default()
            })),
        ),
        ("rejected", Receipt::Rejected),
        ("batch", Receipt::BatchPayment(Box::default())),
        ("vault", Receipt::Vault(view)),
        (
            "backups",
            Receipt::Backups(vec![
                backup(Ok(vec![1])),
                backup(Err(Fault::unavailable("away"))),
            ]),
        ),
        (
            "deposit",
            Receipt::Deposit(wire::CreateDepositWalletResponse::default()),
        ),
    ];
    let mut answers = vec![
        ("not-done", ForwardOutcome::NotDone),
        (
            "refused",
            ForwardOutcome::Answer(Box::new(Err(Fault::field("from", "is wrong")))),
        ),
    ];
    for (name, receipt) in receipts {
        let submitted = Submitted {
            receipt,
            replayed: true,
            body_mismatch: false,
        };
        answers.push((name, ForwardOutcome::Answer(Box::new(Ok(submitted)))));
    }
    for (name, answer) in answers {
        let bytes = encode_delivery(answer).unwrap();
        check(&format!("answer-{name}"), &bytes, |bytes| {
            encode_delivery(decode_delivery(bytes).unwrap()).unwrap()
        });
    }
}

#[test]
fn form__should_refuse_what_is_never_sent_and_what_is_none() {
    assert!(command_form(Command::RevokeToken("t".into())).is_err());
    assert!(encode_delivery(ForwardOutcome::NotKnown).is_err());
    assert!(decode_command(b"").is_err());
    assert!(decode_command(&[1, 2, 3]).is_err());
    assert!(decode_delivery(&[0, 9]).is_err());
}
