//! Transactions whose gas another one pays, in both roles.

use k256::ecdsa::signature::Signer as _;
use sui_sdk_types::{
    FundsWithdrawal, GasPayment, Identifier, MergeCoins, MoveCall, ProgrammableTransaction,
    Secp256k1PublicKey, Secp256k1Signature, SplitCoins, TransactionKind, TransferObjects,
    WithdrawFrom,
};

use super::*;
use crate::networks::outflow::{AccountChange, Spend};

fn other_key() -> SigningKey {
    SigningKey::from_bytes(&[8; 32])
}

fn other() -> Address {
    Ed25519PublicKey::new(other_key().verifying_key().to_bytes()).derive_address()
}

fn wallet() -> Address {
    parse_address(&from()).unwrap()
}

/// Flag, signature and key.
fn signature_of(key: &SigningKey, transaction: &Transaction) -> Vec<u8> {
    let signature = ed25519_dalek::Signer::sign(key, &transaction.signing_digest());
    let key = key.verifying_key().to_bytes();
    [&[0][..], &signature.to_bytes(), &key].concat()
}

fn object(number: u8) -> ObjectReference {
    ObjectReference::new(Address::new([number; 32]), 3, Digest::new([number; 32]))
}

fn transaction(
    sender: Address,
    owner: Address,
    inputs: Vec<Input>,
    commands: Vec<Command>,
) -> Transaction {
    Transaction {
        kind: TransactionKind::ProgrammableTransaction(ProgrammableTransaction {
            inputs,
            commands,
        }),
        sender,
        gas_payment: GasPayment {
            objects: vec![object(1)],
            owner,
            price: 10,
            budget: 1_000,
        },
        expiration: TransactionExpiration::None,
    }
}

/// Sends an object of the sender's, and 5 of a token, to `TO`.
fn payment(sender: Address, owner: Address) -> Transaction {
    let to = parse_address(TO).unwrap().as_bytes().to_vec();
    let inputs = vec![
        Input::ImmutableOrOwned(object(10)),
        Input::Pure(to),
        Input::FundsWithdrawal(FundsWithdrawal::new(
            5,
            parse_coin_type(TOKEN).unwrap().into(),
            WithdrawFrom::Sender,
        )),
    ];
    let commands = vec![Command::TransferObjects(TransferObjects {
        objects: vec![Argument::Input(0)],
        address: Argument::Input(1),
    })];
    transaction(sender, owner, inputs, commands)
}

fn custom(transaction: &Transaction, others: &[Vec<u8>]) -> Result<Payload, Fault> {
    Payload::parse(&WireKind::SuiSendCustom(wire::SuiSendCustom {
        from: from(),
        payload: tx::encode(transaction).unwrap(),
        other_signatures: others.to_vec(),
    }))
}

fn sentence(refused: Result<Payload, Fault>) -> String {
    let fault = refused.unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    fault.message().to_owned()
}

/// What is sent, with the wallet's signature.
fn assembled(payload: &Payload) -> (Unsigned, SentTransaction) {
    let unsigned = SUI_CHAIN
        .build(payload, &networks::ChainData::Nothing, &public_key())
        .unwrap();
    let own = sign(&unsigned.signing[0].message);
    let signed = SUI_CHAIN
        .assemble(payload, &unsigned, &[own], &public_key())
        .unwrap()
        .unwrap();
    let sent = read_sent(&signed.transaction).unwrap();
    (unsigned, sent)
}

#[test]
fn both_roles__should_sign_the_same_bytes_and_be_sent_with_both_signatures() {
    for (as_sender, transaction) in [
        (true, payment(wallet(), other())),
        (false, payment(other(), wallet())),
    ] {
        let alone = custom(&transaction, &[]).unwrap();
        assert_eq!(alone.missing_signer(), Some(other().to_string()));
        assert!(!alone.may_broadcast(&networks::KnownChains::default()));
        let theirs = signature_of(&other_key(), &transaction);
        let whole = custom(&transaction, std::slice::from_ref(&theirs)).unwrap();
        assert_eq!(whole.missing_signer(), None);
        assert!(whole.may_broadcast(&networks::KnownChains::default()));
        assert_eq!(Payload::decode(&whole.encode()), Ok(whole.clone()));

        let (unsigned, sent) = assembled(&alone);
        assert_eq!(unsigned.bytes, tx::encode(&transaction).unwrap());
        assert_eq!(sent.signatures.len(), 1);
        let own = sent.signatures[0].clone();
        let (same, sent) = assembled(&whole);
        assert_eq!(same, unsigned);
        // The sender's first.
        let expected = match as_sender {
            true => vec![own, theirs],
            false => vec![theirs, own],
        };
        assert_eq!(sent.signatures, expected);
    }
}

/// The keys 7 (the wallet's), 8 and 6 (secp256k1) with @mysten/sui 2.33.1.
#[test]
fn both_roles__should_make_what_the_sdk_makes() {
    let sdk: serde_json::Value = serde_json::from_str(include_str!("../sponsored.json")).unwrap();
    let sdk = sdk.as_array().unwrap();
    assert_eq!(sdk.len(), 4);
    for one in sdk {
        let text = |name: &str| one[name].as_str().unwrap();
        let is_sender = one["json"]["sender"] == from();
        let other = text(if is_sender { "gasOwner" } else { "sender" });
        let bytes = STANDARD.decode(text("bcs")).unwrap();
        for payload in [bytes.clone(), one["json"].to_string().into_bytes()] {
            let payload = Payload::parse(&WireKind::SuiSendCustom(wire::SuiSendCustom {
                from: from(),
                payload,
                other_signatures: vec![STANDARD.decode(other).unwrap()],
            }))
            .unwrap();
            let (unsigned, sent) = assembled(&payload);
            assert_eq!(unsigned.bytes, bytes);
            let both = ["sender", "gasOwner"].map(|name| STANDARD.decode(text(name)).unwrap());
            assert_eq!(sent.signatures, both);
            assert_eq!(read(&unsigned).digest().to_base58(), text("digest"));
        }
    }
}

#[test]
fn other_signature__should_be_of_the_other_one_over_this_transaction() {
    let transaction = payment(wallet(), other());
    let good = signature_of(&other_key(), &transaction);
    let mut changed = transaction.clone();
    changed.gas_payment.budget += 1;
    let mut flipped = good.clone();
    flipped[5] ^= 1;
    let third = SigningKey::from_bytes(&[9; 32]);
    let mut r1 = vec![2];
    r1.extend([7; 64]);
    r1.extend([3; 33]);
    for (signature, problem) in [
        (
            signature_of(&other_key(), &changed),
            "does not sign this transaction",
        ),
        (flipped, "does not sign this transaction"),
        (signature_of(&third, &transaction), "is signed by 0x"),
        (
            signature_of(&signing_key(), &transaction),
            "is signed by 0x",
        ),
        (r1, "is of secp256r1, which Covault does not verify"),
        (vec![5; 97], "must be a serialized signature of Ed25519"),
        (good[..96].to_vec(), "must be a serialized signature of"),
        (vec![], "must be a serialized signature of Ed25519"),
    ] {
        let said = sentence(custom(&transaction, &[signature]));
        let expected = format!("suiSendCustom.otherSignatures: {problem}");
        assert!(said.starts_with(&expected), "{said}");
    }
    let said = sentence(custom(&transaction, &[good.clone(), good.clone()]));
    assert!(said.contains("must be at most one"), "{said}");
    let own = payment(wallet(), wallet());
    let said = sentence(custom(&own, &[good]));
    assert!(said.contains("must be empty"), "{said}");
    assert_eq!(custom(&own, &[]).unwrap().missing_signer(), None);
}

#[test]
fn other_signature__should_be_taken_of_secp256k1_with_a_low_s() {
    let key = k256::ecdsa::SigningKey::from_slice(&[6; 32]).unwrap();
    let public_key: [u8; 33] = key
        .verifying_key()
        .to_sec1_point(true)
        .as_bytes()
        .try_into()
        .unwrap();
    let owner = Secp256k1PublicKey::new(public_key).derive_address();
    let transaction = payment(wallet(), owner);
    let signature: k256::ecdsa::Signature = key.sign(&transaction.signing_digest());
    let low = signature.normalize_s();
    let (r, s) = low.split_scalars();
    let high = k256::ecdsa::Signature::from_scalars(r, -s).unwrap();
    let serialized = |signature: &k256::ecdsa::Signature| {
        let signature = Secp256k1Signature::new(signature.to_bytes().into());
        [&[1][..], signature.inner(), &public_key].concat()
    };
    assert!(custom(&transaction, &[serialized(&low)]).is_ok());
    let said = sentence(custom(&transaction, &[serialized(&high)]));
    assert!(said.ends_with("does not sign this transaction"), "{said}");
}

#[test]
fn sender__should_be_shown_all_but_the_gas() {
    let payload = custom(&payment(wallet(), other()), &[]).unwrap();
    assert!(!payload.pays_fee());
    let shown = |payload: &Payload| {
        let one = |spend: Spend| (spend.asset.to_string(), spend.amount, spend.recipient);
        let spends = payload.outflow(Network::Sui).spends;
        spends.into_iter().map(one).collect::<Vec<_>>()
    };
    let token = format!("sui/{}", SUI_CHAIN.parse_token(TOKEN).unwrap());
    let to = Some(TO.to_owned());
    assert_eq!(
        shown(&payload),
        [
            (token, U256::from(5), None),
            ("sui".to_owned(), U256::ZERO, to.clone())
        ]
    );
    // What comes of the other's gas coin is not the sender's, and what goes into it is given away.
    let to_other = parse_address(TO).unwrap().as_bytes().to_vec();
    let inputs = vec![
        Input::Pure(5_u64.to_le_bytes().to_vec()),
        Input::Pure(to_other),
        Input::ImmutableOrOwned(object(10)),
        Input::FundsWithdrawal(FundsWithdrawal::new(
            9,
            StructTag::sui().into(),
            WithdrawFrom::Sponsor,
        )),
    ];
    let commands = vec![
        Command::SplitCoins(SplitCoins {
            coin: Argument::Gas,
            amounts: vec![Argument::Input(0)],
        }),
        Command::TransferObjects(TransferObjects {
            objects: vec![Argument::NestedResult(0, 0)],
            address: Argument::Input(1),
        }),
        Command::MergeCoins(MergeCoins {
            coin: Argument::Gas,
            coins_to_merge: vec![Argument::Input(2)],
        }),
    ];
    let payload = custom(&transaction(wallet(), other(), inputs, commands), &[]).unwrap();
    let sui = |to| ("sui".to_owned(), U256::ZERO, to);
    assert_eq!(shown(&payload), [sui(to), sui(Some(other().to_string()))]);
}

#[test]
fn gas_owner__should_pay_gas_and_nothing_else() {
    let payload = custom(&payment(other(), wallet()), &[]).unwrap();
    assert!(payload.pays_fee());
    assert!(payload.outflow(Network::Sui).spends.is_empty());
    let unsigned = assembled(&payload).0;
    assert_eq!(SUI_CHAIN.most_fee(&unsigned.bytes), Ok(U256::from(1_000)));
    // An alias would be the sender's.
    let call = |arguments| {
        Command::MoveCall(MoveCall {
            package: Address::TWO,
            module: Identifier::from_static("address_alias"),
            function: Identifier::from_static("f"),
            type_arguments: vec![],
            arguments,
        })
    };
    let alias = |sender, owner| {
        let transaction = transaction(sender, owner, vec![], vec![call(vec![])]);
        custom(&transaction, &[]).unwrap().account_changes()
    };
    assert!(alias(other(), wallet()).is_empty());
    let change = [AccountChange::SuiAddressAlias].into();
    assert_eq!(alias(wallet(), other()), change);

    let gas = Argument::Gas;
    let input = Argument::Input;
    for command in [
        Command::SplitCoins(SplitCoins {
            coin: gas,
            amounts: vec![input(0)],
        }),
        Command::TransferObjects(TransferObjects {
            objects: vec![input(0), gas],
            address: input(0),
        }),
        Command::MergeCoins(MergeCoins {
            coin: input(0),
            coins_to_merge: vec![gas],
        }),
        Command::MergeCoins(MergeCoins {
            coin: gas,
            coins_to_merge: vec![input(0)],
        }),
        Command::MakeMoveVector(sui_sdk_types::MakeMoveVector {
            type_: None,
            elements: vec![gas],
        }),
        call(vec![input(0), gas]),
    ] {
        let inputs = vec![Input::Pure(vec![1; 8])];
        let transaction = transaction(other(), wallet(), inputs, vec![command]);
        let said = sentence(custom(&transaction, &[]));
        assert!(
            said.contains("spends more of the gas owner's than gas"),
            "{said}"
        );
    }
    let withdrawal = FundsWithdrawal::new(9, StructTag::sui().into(), WithdrawFrom::Sponsor);
    let inputs = vec![Input::FundsWithdrawal(withdrawal)];
    let said = sentence(custom(&transaction(other(), wallet(), inputs, vec![]), &[]));
    assert!(
        said.contains("spends more of the gas owner's than gas"),
        "{said}"
    );
    // Of a transaction of two others nothing is signed.
    let said = sentence(custom(&payment(other(), other()), &[]));
    assert!(said.contains("is not a transaction of `from`"), "{said}");
}

#[test]
fn each__should_hold_what_is_its_own() {
    let held = |transaction: &Transaction| {
        let payload = custom(transaction, &[]).unwrap();
        let unsigned = assembled(&payload).0;
        SUI_CHAIN.reservations(&payload, &unsigned).unwrap()
    };
    let piece = |number: u8| Resource::Object(format!("{}:3", Address::new([number; 32])));
    assert_eq!(held(&payment(wallet(), wallet())), [1, 10].map(piece));
    assert_eq!(held(&payment(wallet(), other())), [piece(10)]);
    assert_eq!(held(&payment(other(), wallet())), [piece(1)]);
}
