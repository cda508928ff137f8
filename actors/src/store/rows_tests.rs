//! Rows of every kind and version must load for ever. When a sample is missing the test fails
//! and prints what it would hold.

#![allow(non_snake_case)]

use std::{collections::BTreeMap, fs, path::PathBuf};

use covault_core::{
    approval::{
        ApprovalProof, ApprovalTerms, ApproverLine, GivenApproval, Passkey, PasskeyPublicKey,
        WebAuthnAssertion,
    },
    attest::{AddressProof, AddressStatement, MadeKey},
    audit::LinkedEntry,
    batch::{self, BatchPayment},
    deposit::{
        AddressWatch, ChainAssets, Deposit, SweepRoute, Webhook,
        transfer::{Account, FollowedChain},
    },
    derive::{KeyPath, RootKey},
    fault::ExecuteCode,
    ids::{OrchestratorId, SessionId, WalletId, WatchId},
    networks::{ChainData, Network, Replacement, Signed, SigningInput, Unsigned, evm, solana},
    order::{
        Generation, KeygenOrder, ListedNodes, NodeId, ProvenGeneration, ReshareOrder, ReshareProof,
    },
    request::{
        ApprovalMode, ApprovalRule, Approver, BuiltDraft, Consent, Draft, Inclusion,
        PersonApproval, Replaces, RequestState, SigningRequest, TransactionPart, TransactionState,
        WalletNeeds,
    },
    scheme::Scheme,
    signature::{Curve, Signature},
    token::{AdminRole, ApiToken, NewToken, TokenAccess, TokenHash, TokenKind, TokenVaults},
    user::{EnrolledPasskey, EnrolmentLink, FormToken, Session, UsedChallenges, User, UserRole},
    wallet::{
        Wallet, WalletStatus,
        generation::{Activation, LiveKey, ReshareState, ReshareTarget},
        management::{ManagementKind, ManagementOutcome, ManagementRequest},
        vault::{KeyState, Vault, VaultKey},
    },
};

use super::*;
use crate::backup::restore::{RestoreState, RestoreTimes};
use crate::{
    leases::{LeaseRow, MemberRow},
    nodes::status::NodeStatusRow,
    port::{KeyRound, NodeHalt, NodeView, UnadmittedView},
    process::counters::RequestCounts,
    store::overview_rows::{
        BackupRow, FailedRequest, OpenRequestCounts, ServiceCounts, VaultCounts,
    },
    vaults::vault::KeyProgress,
};

pub fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(name: &str, value: &T) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/wire")
        .join(format!("{name}.hex"));
    let bytes = hex::encode(encode(value).unwrap());
    if std::env::var_os("COVAULT_RECORD_WIRE").is_some() {
        fs::write(&path, format!("{bytes}\n")).unwrap();
    }
    let sample = fs::read_to_string(&path)
        .unwrap_or_else(|_| panic!("{} is missing; it would hold\n{bytes}", path.display()));
    assert_eq!(
        &decode::<T>(&hex::decode(sample.trim()).unwrap()).unwrap(),
        value,
        "{name}"
    );
    assert_eq!(
        sample.trim(),
        bytes,
        "{name}: the present version is written differently"
    );
}

fn rule() -> ApprovalRule {
    ApprovalRule {
        mode: ApprovalMode::Manual { needs: 1 },
        of: vec![Approver {
            name: "treasurer".into(),
            keys: vec!["ssh-ed25519 AAAA".into()],
        }],
        expires_ms: 9,
        client_signers: vec![NodeId([6; 32])],
        wallets: vec![WalletNeeds {
            address: "an address".into(),
            needs: 2,
        }],
    }
}

fn draft() -> Draft {
    Draft {
        chain_data: ChainData::Evm(evm::ChainData {
            nonce: Some(7),
            eip1559: true,
            fees: Some(evm::Fees {
                estimate_gas: 21_000,
                base_fee: 1_000_000_000,
                max_priority_fee: 2,
            }),
        }),
        unsigned: Unsigned {
            bytes: vec![2, 3],
            signing: vec![SigningInput {
                curve: Curve::Secp256k1,
                message: vec![9; 32],
            }],
        },
        shared: Default::default(),
        claim: Some(NonceReservation {
            network: Network::Evm,
            chain_id: 1,
            address: "0xaa".into(),
            nonce: 7,
        }),
        broadcast: true,
        built_at_ms: 11,
        deadline_ms: 12,
    }
}

fn signatures() -> Vec<Signature> {
    vec![
        Signature::Ecdsa {
            r: [1; 32],
            s: [2; 32],
            y_parity: 1,
        },
        Signature::Ed25519 {
            r: [3; 32],
            s: [4; 32],
        },
    ]
}

fn signed() -> Signed {
    Signed {
        transaction: "0x02".into(),
        tx_hash: "0x03".into(),
    }
}

fn states() -> Vec<(&'static str, RequestState)> {
    let of_solana = Draft {
        chain_data: ChainData::Solana(solana::ChainData {
            recent_blockhash: "hash".into(),
            token: None,
            compute: None,
        }),
        claim: None,
        shared: [Resource::Object("a:0".into())].into(),
        ..draft()
    };
    vec![
        ("received", RequestState::Received),
        ("screened", RequestState::Screened { broadcast: true }),
        (
            "awaiting",
            RequestState::AwaitingApproval {
                broadcast: true,
                built: None,
            },
        ),
        (
            "awaiting-again",
            RequestState::AwaitingApproval {
                broadcast: true,
                built: Some(Box::new(BuiltDraft {
                    draft: draft(),
                    attempts: 2,
                })),
            },
        ),
        (
            "preparing",
            RequestState::Preparing {
                broadcast: true,
                deadline_ms: 5,
            },
        ),
        (
            "prepared",
            RequestState::Prepared {
                draft: of_solana,
                attempts: 2,
            },
        ),
        (
            "signing",
            RequestState::Signing {
                draft: draft(),
                attempt: 3,
                session: SessionId::from_bytes([6; 16]),
            },
        ),
        (
            "signed",
            RequestState::Signed {
                draft: draft(),
                signatures: signatures(),
                signed: None,
            },
        ),
        (
            "broadcasting",
            RequestState::Broadcasting {
                draft: draft(),
                signatures: signatures(),
                signed: signed(),
            },
        ),
        (
            "in-doubt",
            RequestState::InDoubt {
                draft: Box::new(draft()),
                reason: "rejected".into(),
                code: ExecuteCode::AlreadyDenied,
            },
        ),
        (
            "succeeded",
            RequestState::Succeeded {
                signatures: signatures(),
                signed: Some(signed()),
                sent: true,
                handed_over: None,
            },
        ),
        (
            "handed-over",
            RequestState::Succeeded {
                signatures: signatures(),
                signed: Some(signed()),
                sent: false,
                handed_over: Some(Box::new(draft())),
            },
        ),
        (
            "failed",
            RequestState::Failed {
                reason: "no".into(),
                code: ExecuteCode::InsufficientFunds,
                signatures: vec![],
            },
        ),
    ]
}

#[test]
fn requests__should_load_for_ever_in_every_state() {
    for (name, state) in states() {
        let request = SigningRequest {
            id: RequestId::from_bytes([1; 16]),
            vault: VaultId::from_bytes([2; 16]),
            wallet: WalletId::from_bytes([3; 16]),
            network: Network::Evm,
            root_public_key: vec![4; 33],
            path: KeyPath::of_wallet(Network::Evm, 5).unwrap(),
            public_key: vec![6; 33],
            address: "0xaa".into(),
            payload: vec![7, 8],
            notes: Some("notes".into()),
            token: TokenId::from_bytes([9; 16]),
            replaces: Some(Replaces {
                request: RequestId::from_bytes([10; 16]),
                first: RequestId::from_bytes([11; 16]),
                how: Replacement::Cancel,
                most_fee: Some(12),
            }),
            created_at_ms: 10,
            consent: Consent {
                rule: rule(),
                given: vec![PersonApproval {
                    person: "treasurer".into(),
                    at_ms: 11,
                    terms: ApprovalTerms {
                        most_fee: 12,
                        valid_until_ms: 13,
                    },
                    given: GivenApproval {
                        list: vec![[14; 32]],
                        proof: ApprovalProof::Ssh("signature".into()),
                    },
                }],
                expires_at_ms: 15,
                wanted: Some("signer-2 wants more".into()),
                held_until_ms: 16,
            },
            state,
        };
        check(&format!("request-v1-{name}"), &request);
    }
}

#[test]
fn wallets_and_vaults__should_load_for_ever() {
    let wallet = Wallet {
        id: WalletId::from_bytes([3; 16]),
        vault: VaultId::from_bytes([2; 16]),
        network: Network::Solana,
        path: KeyPath::of_wallet(Network::Solana, 5).unwrap(),
        public_key: vec![6; 32],
        address: "address".into(),
        reference: "ref".into(),
        name: "name".into(),
        status: WalletStatus::Active,
        created_at_ms: 10,
    };
    check("wallet-v1", &wallet);
    let order = KeygenOrder {
        vault: VaultId::from_bytes([2; 16]),
        session: SessionId::from_bytes([6; 16]),
        scheme: Scheme::FrostEd25519,
        threshold: 2,
        signers: vec![NodeId([1; 32]), NodeId([2; 32])],
        issued_at_ms: 1,
        expires_at_ms: 2,
    };
    let root = RootKey {
        curve: Curve::Secp256k1,
        public_key: vec![7; 33],
        chain_code: [8; 32],
    };
    let confirmed = vec![vec![5; 64], vec![6; 64]];
    let made = MadeKey { root, confirmed };
    let live = LiveKey::new(made, 2, vec![NodeId([1; 32]), NodeId([2; 32])]);
    let target = ReshareTarget {
        threshold: 2,
        holders: vec![NodeId([2; 32]), NodeId([3; 32])],
        lost: vec![NodeId([1; 32])],
    };
    let reshare = ReshareOrder {
        vault: VaultId::from_bytes([2; 16]),
        session: SessionId::from_bytes([7; 16]),
        scheme: Scheme::Dkls23,
        root_public_key: vec![7; 33],
        old: live.generation.clone(),
        dealers: live.generation.holders.clone(),
        new: Generation {
            epoch: 1,
            threshold: 2,
            holders: target.holders.clone(),
        },
        issued_at_ms: 3,
        expires_at_ms: 4,
    };
    let life = |reshare, activation| {
        KeyState::Ready(LiveKey {
            reshare,
            activation,
            leftover: vec![NodeId([3; 32])],
            ..live.clone()
        })
    };
    let ready = life(ReshareState::Idle, None);
    let wanted = life(ReshareState::Wanted(target.clone()), None);
    let activation = Activation {
        order: reshare.clone(),
        proof: ReshareProof(vec![(NodeId([2; 32]), vec![9; 64])]),
        before: vec![ProvenGeneration {
            order: reshare.clone(),
            proof: ReshareProof(vec![(NodeId([3; 32]), vec![8; 64])]),
        }],
        untold: vec![NodeId([3; 32])],
        asked: true,
    };
    let halted = ReshareState::Halted {
        target: target.clone(),
        reason: "a full disk".into(),
    };
    let halted = life(halted, None);
    let preparing = ReshareState::Preparing {
        target,
        order: reshare,
    };
    let preparing = life(preparing, Some(activation));
    let vault = |keys: [KeyState; 2]| Vault {
        id: VaultId::from_bytes([2; 16]),
        name: "main".into(),
        threshold: 2,
        signers: vec![NodeId([1; 32]), NodeId([2; 32])],
        approval: rule(),
        created_at_ms: 10,
        keys: Curve::ALL
            .into_iter()
            .zip(keys)
            .map(|(curve, state)| VaultKey {
                scheme: Scheme::default_of(curve),
                state,
            })
            .collect(),
    };
    check(
        "vault-v1-generating",
        &vault([ready, KeyState::Generating(order)]),
    );
    check("vault-v1-resharing", &vault([wanted, preparing]));
    check("vault-v1-halted", &vault([halted, KeyState::Wanted]));
    check(
        "vault-v1-failed",
        &vault([KeyState::Wanted, KeyState::Failed("no".into())]),
    );
}

#[test]
fn outbox_idempotency_and_audit__should_load_for_ever() {
    for (name, effect) in [
        ("prepare", RequestEffect::Prepare),
        ("claim-session", RequestEffect::ClaimSession),
        ("sign", RequestEffect::Sign),
        ("deliver", RequestEffect::Deliver),
        ("broadcast", RequestEffect::Broadcast),
        ("track", RequestEffect::Track),
    ] {
        check(
            &format!("outbox-v1-{name}"),
            &OutboxRow {
                failures: 3,
                effect,
            },
        );
    }
    let replay = IdempotencyRow {
        body_hash: [1; 32],
        at_ms: 2,
        response: vec![3],
    };
    check("idempotency-v1", &replay);
    let release = ReservationExpiry {
        claims: vec![vec![1, 2], vec![3]],
    };
    check("release-v1", &release);
    let simulated = SimulationRow {
        at_ms: 2,
        json: b"{}".to_vec(),
    };
    check("simulation-v1", &simulated);
    let inclusion = Inclusion {
        block: 9,
        success: true,
    };
    for (name, state) in [
        ("pending", TransactionState::Pending),
        ("mined", TransactionState::Mined(inclusion)),
        ("final", TransactionState::Final(inclusion)),
        (
            "replaced",
            TransactionState::Replaced {
                by: Some("0x12".into()),
            },
        ),
        ("dropped", TransactionState::Dropped),
        (
            "partial",
            TransactionState::Partial(vec![
                TransactionPart {
                    hash: "5a".into(),
                    inclusion: Some(inclusion),
                },
                TransactionPart {
                    hash: "5b".into(),
                    inclusion: None,
                },
            ]),
        ),
    ] {
        let row = TransactionRow {
            state,
            at_ms: 2,
            problem: Some("late".into()),
            waits_since_block: Some(3),
        };
        check(&format!("transaction-v1-{name}"), &row);
    }
    let refused = RefusedRow {
        signed: Signed {
            transaction: "0x02".into(),
            tx_hash: "0x12".into(),
        },
        sent_at_ms: 2,
        unkept: 5,
        late: None,
    };
    check("refused-number-v1", &refused);
    let late = LateRow {
        at_ms: 3,
        told: Some(RequestId::from_bytes([4; 16])),
        is_partial: true,
    };
    let late = RefusedRow {
        late: Some(late),
        ..refused
    };
    check("refused-number-v1-late", &late);
    let entry = |request, at_block| ReplacementEntry {
        request: RequestId::from_bytes([request; 16]),
        at_block,
    };
    let replacements = ReplacementRow {
        replacements: vec![entry(1, None), entry(2, Some(3))],
    };
    check("replacements-v1", &replacements);
    let linked = LinkedEntry {
        number: 2,
        previous: [3; 32],
        hash: [4; 32],
        body: vec![5, 6],
    };
    check("audit-head-v1", &linked.head());
    check("audit-link-v1", &linked);
    let imported = RestoreTimes {
        backup_at_ms: 7,
        restored_at_ms: 8,
    };
    for (name, restore) in [
        ("restore-v1-importing", RestoreState::Importing),
        ("restore-v1-imported", RestoreState::Imported(imported)),
        ("restore-v1-held", RestoreState::Held(imported)),
        ("restore-v1-open", RestoreState::Open(imported)),
    ] {
        check(name, &restore);
    }
    check("first-wallet-v1", &1_000_001_u32);
    check("rule-changes-v1", &3_u64);
    let request = ManagementRequest {
        id: RequestId::from_bytes([1; 16]),
        vault: VaultId::from_bytes([2; 16]),
        kind: ManagementKind::KeyAccessGrant {
            curve: Curve::Ed25519,
            node: NodeId([3; 32]),
            epoch: 4,
        },
        created_at_ms: 5,
        outcome: Some(ManagementOutcome::Failed("no".into())),
    };
    check("management-request-v1", &request);
    let proof = AddressProof {
        statement: AddressStatement {
            vault: VaultId::from_bytes([2; 16]),
            root_public_key: vec![7; 32],
            threshold: 2,
            holders: vec![NodeId([1; 32]), NodeId([2; 32])],
            path: KeyPath::new(vec![501, 5]).unwrap(),
            network: Network::Solana,
            address: "address".into(),
            reference: "ref".into(),
        },
        epoch: 1,
        statements: vec![(NodeId([1; 32]), vec![9; 64])],
    };
    check("address-proof-v1", &proof);
    check("proof-wanted-v1", &"ref".to_owned());
}

#[test]
fn batches__should_load_for_ever_in_every_state() {
    let reason = "no".into();
    let progress = batch::BatchProgress {
        client_signer: Some(NodeId([4; 32])),
        requests: vec![
            batch::BatchRequest {
                stage: batch::BatchStage::ResetAllowance,
                request: RequestId::from_bytes([5; 16]),
            },
            batch::BatchRequest {
                stage: batch::BatchStage::Allowance,
                request: RequestId::from_bytes([6; 16]),
            },
            batch::BatchRequest {
                stage: batch::BatchStage::Send,
                request: RequestId::from_bytes([7; 16]),
            },
        ],
    };
    let failed = batch::BatchState::Failed {
        reason,
        progress: progress.clone(),
        resumable: true,
    };
    for (name, state) in [
        ("pending", batch::BatchState::Pending),
        ("approved", batch::BatchState::Approved(progress.clone())),
        ("succeeded", batch::BatchState::Succeeded(progress)),
        ("failed", failed),
    ] {
        let batch = BatchPayment {
            id: BatchId::from_bytes([1; 16]),
            vault: VaultId::from_bytes([2; 16]),
            wallet: WalletId::from_bytes([3; 16]),
            name: "salaries".into(),
            notes: "May".into(),
            payment: vec![7, 8],
            token: TokenId::from_bytes([9; 16]),
            created_at_ms: 10,
            state,
        };
        check(&format!("batch-v1-{name}"), &batch);
    }
}

#[test]
fn node__should_load_for_ever() {
    let admitted = crate::nodes::AdmittedNode {
        id: NodeId([4; 32]),
        name: "vienna".into(),
        at_ms: 1_000,
    };
    check("node-v1", &admitted);
}

#[test]
fn tokens_and_deposits__should_load_for_ever() {
    let record = |vaults, name: &str| NewToken {
        name: name.into(),
        kind: TokenKind::Sweep,
        vaults,
        access: TokenAccess::ReadOnly,
        allow: vec![
            "192.0.2.0/24".parse().unwrap(),
            "2001:db8::1".parse().unwrap(),
        ],
        expires_at_ms: Some(3),
    };
    let hash = TokenHash::of("cvs_");
    let some = TokenVaults::Only(vec![VaultId::from_bytes([2; 16])]);
    check("token-v1-some", &record(some, "shop").record(hash, 1));
    let whole = ApiToken {
        kind: TokenKind::Platform,
        access: TokenAccess::Full,
        allow: vec![],
        expires_at_ms: None,
        revoked_at_ms: Some(4),
        ..record(TokenVaults::All, "bank").record(hash, 1)
    };
    check("token-v1-all", &whole);
    let admin = ApiToken {
        kind: TokenKind::Admin(AdminRole::Auditor),
        ..record(TokenVaults::All, "anna").record(hash, 1)
    };
    check("token-v1-admin", &admin);
    let route = SweepRoute {
        vault: Some(VaultId::from_bytes([2; 16])),
        target: Some("0xaa".into()),
        webhook: Some(Webhook("https://example.com/".into())),
        assets: BTreeMap::from([(
            FollowedChain::Evm(1),
            ChainAssets {
                coin_minimum: Some("1".into()),
                tokens: BTreeMap::from([(Account([9; 20]), "2".into())]),
            },
        )]),
    };
    check("sweep-route-v1", &route);
    check("sweep-route-v1-empty", &SweepRoute::default());
    let deposit = Deposit {
        wallet: WalletId::from_bytes([3; 16]),
        created_at_ms: 5,
    };
    check("deposit-v1", &deposit);
    let watch = AddressWatch {
        id: WatchId::from_bytes([4; 16]),
        created_at_ms: 6,
    };
    check("watch-v1", &watch);
}

#[test]
fn users_and_sessions__should_load_for_ever() {
    let passkey = Passkey {
        name: "treasurer@key-1".into(),
        rp_id: "console.example.com".into(),
        origins: ["https://console.example.com".to_owned()].into(),
        credential_id: vec![5; 16],
        public_key: PasskeyPublicKey::Ed25519([6; 32]),
        backup_eligible: true,
    };
    let possession = WebAuthnAssertion {
        authenticator_data: vec![7; 37],
        client_data_json: b"{}".to_vec(),
        signature: vec![8; 64],
    };
    let user = User {
        id: UserId::from_bytes([1; 16]),
        name: "treasurer".into(),
        role: UserRole::Approver,
        vaults: TokenVaults::Only(vec![VaultId::from_bytes([2; 16])]),
        created_at_ms: 3,
        revoked_at_ms: Some(4),
        link: Some(EnrolmentLink {
            hash: SecretHash::of(&[9; 32]),
            expires_at_ms: 10,
        }),
        passkeys: vec![EnrolledPasskey {
            line: ApproverLine {
                passkey,
                possession,
            },
            at_ms: 11,
        }],
    };
    check("user-v1", &user);
    let invited = User {
        role: UserRole::Auditor,
        vaults: TokenVaults::All,
        revoked_at_ms: None,
        link: None,
        passkeys: Vec::new(),
        ..user
    };
    check("user-v1-without", &invited);
    let session = Session {
        user: invited.id,
        form_token: FormToken([12; 32]),
        created_at_ms: 13,
        seen_at_ms: 14,
        device: "Mozilla/5.0".into(),
        address: "192.0.2.1".into(),
        passkey: "treasurer@key-1".into(),
    };
    check("user-session-v1", &session);
    let used = UsedChallenges {
        used: vec![([15; 32], 16)],
    };
    check("used-challenges-v1", &used);
    let hash = SecretHash::of(&[9; 32]);
    let key = user_session(invited.id, &hash);
    assert_eq!(
        hex::encode(&key.bytes),
        "01".repeat(16) + &hex::encode(hash.as_bytes())
    );
    assert!(key.bytes.starts_with(&user_sessions(invited.id).bytes));
}

#[test]
fn keys__should_be_where_they_always_were() {
    let of = ChainAccount {
        network: Network::Evm,
        chain_id: Some(1),
        address: "0xaa".into(),
    };
    let nonce = claim(&of, &Resource::Nonce(7));
    assert_eq!(
        hex::encode(&nonce.bytes),
        "00000000000000000130786161000000000000000007"
    );
    assert_eq!(
        (nonce.space, claimed_nonce(&nonce)),
        (KeySpace::NonceReservation, Some(7))
    );
    assert_eq!(nonce_claim(&draft().claim.unwrap()), nonce);
    let account_part = "010000000000000000626300";
    let of = ChainAccount {
        network: Network::Bitcoin,
        chain_id: None,
        address: "bc".into(),
    };
    for (resource, rest) in [
        (Resource::Object("ab:1".into()), "0161623a31".to_owned()),
        (Resource::TxHash([7; 32]), format!("02{}", "07".repeat(32))),
    ] {
        let key = claim(&of, &resource);
        assert_eq!(hex::encode(&key.bytes), format!("{account_part}{rest}"));
        assert_eq!(key.space, KeySpace::Claim);
    }
    let request = RequestId::from_bytes([1; 16]);
    let key = reservation_expiry(258, request);
    assert_eq!(
        hex::encode(&key.bytes),
        format!("0000000000000102{}", "01".repeat(16))
    );
    assert_eq!(reservation_expiry_due(&key), Some((258, request)));
    let key = outbox(VaultId::from_bytes([2; 16]), RequestId::from_bytes([1; 16]));
    assert_eq!(outbox_request(&key), Some(RequestId::from_bytes([1; 16])));
    let key = request_index(VaultId::from_bytes([2; 16]), 258, request);
    let expected = format!("{}0000000000000102{}", "02".repeat(16), "01".repeat(16));
    assert_eq!(hex::encode(&key.bytes), expected);
    assert_eq!(indexed_request(&key), Some(request));
    check("request-index-v1", &());
    let token = TokenId::from_bytes([9; 16]);
    let key = idempotency(token, "a.B.C", "k");
    assert_eq!(
        hex::encode(key.bytes),
        format!("{}612e422e43006b", "09".repeat(16))
    );
    let of_token = "09".repeat(16);
    assert_eq!(hex::encode(self::token(token).bytes), of_token);
    assert_eq!(hex::encode(token_name("k").bytes), "6b");
    for (network, number) in [(DepositNetwork::Evm, "01"), (DepositNetwork::Tron, "02")] {
        for (key, rest) in [
            (sweep_route(token, network), ""),
            (deposit(token, network, "k"), "6b"),
            (watch(token, network, "k"), "6b"),
        ] {
            assert_eq!(hex::encode(key.bytes), format!("{of_token}{number}{rest}"));
        }
    }
}

#[test]
fn leases__should_stay_readable() {
    let owner = OrchestratorId::from_bytes([5; 16]);
    let owned = LeaseRow {
        owner: Some(owner),
        term: 7,
    };
    check("lease-v1", &owned);
    let free = LeaseRow {
        owner: None,
        term: 8,
    };
    check("lease-v1-free", &free);
    let member = MemberRow {
        name: "one".into(),
        home: Some([6; 32]),
        since_ms: 11,
        at_ms: 12,
        moves: 2,
        leaving: true,
        follows: vec![FollowedChain::Evm(1), FollowedChain::Tron],
        sends_webhooks: true,
        version: "0.1.0".into(),
        secret_fingerprint: Some([3; 8]),
        requests: RequestCounts {
            created: 5,
            succeeded: 3,
            failed: 1,
        },
    };
    check("member-v1", &member);
    let progress = KeyProgress {
        problem: Some("signer-1 is offline".into()),
        round: Some(KeyRound { round: 3, of: 5 }),
    };
    check("key-progress-v1", &progress);
    let node = NodeView {
        name: "vienna".into(),
        live: true,
        last_seen_ms: Some(13),
        version: "0.1.0".into(),
        keys: 2,
        bans: vec![([7; 8], NodeId([8; 32]))],
        skew_ms: -14,
        halted: vec![
            NodeHalt::Clock,
            NodeHalt::Claims,
            NodeHalt::DuplicateIdentity,
            NodeHalt::Frozen,
        ],
        frozen: vec![VaultId::from_bytes([9; 16])],
        listed: Some(ListedNodes::new(
            [&NodeId([2; 32])],
            Some([&NodeId([3; 32])]),
        )),
        ..NodeView::unseen(NodeId([4; 32]))
    };
    check("node-status-v1", &NodeStatusRow { at_ms: 15, node });
    let unadmitted = UnadmittedView {
        id: NodeId([5; 32]),
        name: "graz".into(),
        last_seen_ms: 16,
    };
    check("nodes-unadmitted-v1", &vec![unadmitted]);
    let counts = ServiceCounts {
        at_ms: 17,
        vaults: VaultCounts {
            ready: 1,
            short: 2,
            no_keys: 3,
            cannot_sign: vec!["main: 1 of 2".into()],
            no_spare: 4,
            without_spare: vec!["tight".into()],
            strangers: vec!["vienna: graz".into()],
            client_signers_away: vec!["main: graz".into()],
        },
        requests: OpenRequestCounts {
            awaiting: 5,
            unsigned: 6,
            followed: 7,
            stuck: 8,
        },
    };
    check("service-counts-v1", &counts);
    let backup = BackupRow {
        at_ms: 18,
        bytes: 19,
    };
    check("last-backup-v1", &backup);
    let failed = FailedRequest {
        at_ms: 20,
        request: RequestId::from_bytes([1; 16]),
        vault: VaultId::from_bytes([2; 16]),
        kind: "evmMessage".into(),
        class: "unspecified".into(),
        during: "Signing".into(),
        reason: "no signers".into(),
    };
    check("last-failures-v1", &vec![failed]);
    let key = node_status(NodeId([6; 32]));
    assert_eq!(node_of_status(&key), Some(NodeId([6; 32])));
    assert_eq!(node_of_status(&unadmitted_nodes()), None);
}
