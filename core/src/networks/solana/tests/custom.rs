use solana_message::{AccountMeta, AddressLookupTableAccount, Instruction, v1};
use solana_system_interface::instruction as system;

use super::{
    super::super::{
        token::{TOKEN, TOKEN_2022},
        wire::{MAX_TRANSACTION_BYTES, TransactionError, split},
    },
    *,
};
use crate::{fault::Class, networks::KnownChains};

pub(super) const MEMO: Pubkey =
    Pubkey::from_str_const("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr");
pub(super) const BUDGET: Pubkey =
    Pubkey::from_str_const("ComputeBudget111111111111111111111111111111");

pub(super) fn at(number: u8) -> Pubkey {
    Pubkey::new_from_array([number; 32])
}

pub(super) fn wallet() -> Pubkey {
    parse_key(&from()).unwrap()
}

fn hash() -> Hash {
    Hash::new_from_array([3; 32])
}

pub(super) fn legacy(payer: &Pubkey, instructions: &[Instruction]) -> WireTransaction {
    let message = legacy::Message::new_with_blockhash(instructions, Some(payer), &hash());
    WireTransaction::unsigned(VersionedMessage::Legacy(message)).unwrap()
}

pub(super) fn with_tables(
    instructions: &[Instruction],
    tables: &[(Pubkey, Vec<Pubkey>)],
) -> WireTransaction {
    let tables: Vec<_> = tables
        .iter()
        .map(|(key, addresses)| AddressLookupTableAccount {
            key: *key,
            addresses: addresses.clone(),
        })
        .collect();
    let message = v0::Message::try_compile(&wallet(), instructions, &tables, hash()).unwrap();
    WireTransaction::unsigned(VersionedMessage::V0(message)).unwrap()
}

/// A transfer of so many lamports that the wallet pays for.
pub(super) fn simple(lamports: u64) -> WireTransaction {
    legacy(&wallet(), &[system::transfer(&wallet(), &at(1), lamports)])
}

/// The wallet signs after another account, which pays.
pub(super) fn sponsored() -> WireTransaction {
    legacy(&at(2), &[system::transfer(&wallet(), &at(1), 5)])
}

pub(super) fn call(program: Pubkey, data: &[u8]) -> Instruction {
    Instruction {
        program_id: program,
        accounts: vec![AccountMeta::new(wallet(), true)],
        data: data.to_vec(),
    }
}

fn parse(texts: Vec<String>) -> Result<Payload, Fault> {
    Payload::parse(&WireKind::SolanaSendCustom(wire::SolanaSendCustom {
        from: from(),
        tx_base64: texts,
        chain_id: 101,
    }))
}

pub(super) fn payload(transactions: &[WireTransaction]) -> Payload {
    let texts = transactions.iter().map(|one| STANDARD.encode(one.bytes()));
    parse(texts.collect()).unwrap()
}

fn build(payload: &Payload) -> Unsigned {
    SOLANA
        .build(payload, &networks::ChainData::Nothing, &public_key())
        .unwrap()
}

fn sign(payload: &Payload) -> Signed {
    let unsigned = build(payload);
    let signatures: Vec<_> = unsigned
        .signing
        .iter()
        .map(|input| signature(&input.message))
        .collect();
    SOLANA
        .assemble(payload, &unsigned, &signatures, &public_key())
        .unwrap()
        .unwrap()
}

#[track_caller]
fn refused(texts: Vec<String>, sentence: &str) {
    let fault = parse(texts).unwrap_err();
    assert_eq!(*fault.class(), Class::Invalid);
    let sentence = format!("solanaSendCustom.{sentence}");
    assert!(fault.message().starts_with(&sentence), "{fault}");
}

#[test]
fn custom__should_be_refused_by_what_is_wrong() {
    let good = STANDARD.encode(simple(1).bytes());
    refused(vec![], "txBase64: must hold 1 to 5");
    refused(vec![good.clone(); 6], "txBase64: must hold 1 to 5");
    refused(vec![String::new()], "txBase64[0]: is required");
    refused(
        vec![good.clone(), "!".into()],
        "txBase64[1]: must be base64",
    );
    let same = vec![good.clone(), good.clone()];
    refused(same, "txBase64[1]: is a duplicate");
    let strange = legacy(&at(2), &[system::transfer(&at(2), &wallet(), 1)]);
    refused(
        vec![STANDARD.encode(strange.bytes())],
        "txBase64[0]: does not require the signature of `from`",
    );
    refused(
        vec!["AAAA".into()],
        "txBase64[0]: is not one whole Solana transaction",
    );
    // Signed by the other account or not, it is the same transaction to the network.
    let half = sponsored().signed(&at(2), &[8; 64]).unwrap();
    let both = [sponsored(), half].map(|one| STANDARD.encode(one.bytes()));
    refused(both.to_vec(), "txBase64[1]: is a duplicate");
}

#[test]
fn transaction__should_have_one_form_only() {
    let good = simple(1);
    assert_eq!(WireTransaction::parse(good.bytes()), Ok(good.clone()));
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.bytes().to_vec();
        change(&mut bytes);
        WireTransaction::parse(&bytes).unwrap_err()
    };
    assert_eq!(changed(&|bytes| bytes.push(0)), TransactionError::Form);
    assert_eq!(changed(&|bytes| bytes.truncate(99)), TransactionError::Form);
    assert_eq!(changed(&Vec::clear), TransactionError::Form);
    // The number of signatures, then that of accounts, in a longer form of the same numbers.
    for place in [0, 1 + 64 + 3] {
        let longer = changed(&|bytes| {
            bytes[place] |= 0x80;
            bytes.insert(place + 1, 0);
        });
        assert_eq!(longer, TransactionError::Form);
    }
    // Header: signers, read-only signers, read-only others.
    for (place, value) in [(65, 2), (65, 0), (66, 1), (67, 200)] {
        let broken = changed(&|bytes| bytes[place] = value);
        assert_eq!(broken, TransactionError::Contradiction, "{place}");
    }
    let twice = changed(&|bytes| {
        let first = bytes[69..101].to_vec();
        bytes[101..133].copy_from_slice(&first);
    });
    assert_eq!(twice, TransactionError::AccountTwice);
    let data = vec![0; MAX_TRANSACTION_BYTES];
    let long = legacy::Message::new(&[call(MEMO, &data)], Some(&wallet()));
    let long = WireTransaction::unsigned(VersionedMessage::Legacy(long));
    assert_eq!(long, Err(TransactionError::TooLong));
    let newer = v1::Message {
        header: *good.message().header(),
        account_keys: good.message().static_account_keys().to_vec(),
        instructions: good.message().instructions().to_vec(),
        ..Default::default()
    };
    let newer = WireTransaction::unsigned(VersionedMessage::V1(newer));
    assert_eq!(newer, Err(TransactionError::Version));
}

#[test]
fn build__should_take_the_wallets_signature_out_and_leave_the_others() {
    let ready = simple(1).signed(&wallet(), &[7; 64]).unwrap();
    let sponsored = sponsored().signed(&at(2), &[8; 64]).unwrap();
    let resigned = sponsored.signed(&wallet(), &[9; 64]).unwrap();
    let payload = payload(&[ready, resigned]);
    assert_eq!(SOLANA.queries(&payload), networks::Queries::Nothing);
    let unsigned = build(&payload);
    let expected = [simple(1), sponsored.clone()];
    assert_eq!(
        unsigned.bytes,
        expected.each_ref().map(WireTransaction::bytes).concat()
    );
    assert_eq!(split(&unsigned.bytes), Some(expected.to_vec()));
    let messages: Vec<_> = unsigned
        .signing
        .iter()
        .map(|input| &input.message[..])
        .collect();
    assert_eq!(
        messages,
        expected.each_ref().map(WireTransaction::message_bytes)
    );
    let reservations = SOLANA.reservations(&payload, &unsigned).unwrap();
    let whole =
        |one: &WireTransaction| Resource::TxHash(Sha256::digest(one.message_bytes()).into());
    assert_eq!(reservations, expected.each_ref().map(whole));

    let signed = sign(&payload);
    let texts: Vec<_> = signed.transaction.split(',').collect();
    let own = |one: &WireTransaction| {
        let signature = signature(one.message_bytes()).to_bytes();
        one.signed(&wallet(), &signature).unwrap()
    };
    let whole = expected.each_ref().map(own);
    assert_eq!(
        texts,
        whole.each_ref().map(|one| STANDARD.encode(one.bytes()))
    );
    let ids = whole.map(|one| bs58::encode(one.id().unwrap()).into_string());
    assert_eq!(signed.tx_hash, ids.join(","));
    assert_eq!(ids[1], bs58::encode([8; 64]).into_string());
    let chain_data = SOLANA.build(&payload, &chain_data(), &public_key());
    assert_eq!(*chain_data.unwrap_err().class(), Class::Bug);
}

#[test]
fn custom__should_not_be_sent_before_all_have_signed() {
    let known = KnownChains::default();
    let half = sponsored();
    let full = sponsored().signed(&at(2), &[8; 64]).unwrap();
    assert!(payload(&[full]).may_broadcast(&known));
    assert!(payload(&[simple(1)]).may_broadcast(&known));
    let waiting = payload(&[simple(1), half.clone()]);
    assert!(!waiting.may_broadcast(&known));
    // Its hash is the signature of who pays.
    let (first, second) = (sign(&payload(&[simple(1)])), sign(&payload(&[half])));
    assert_eq!(second.tx_hash, "");
    assert_eq!(sign(&waiting).tx_hash, format!("{},", first.tx_hash));
    assert_eq!(
        sign(&waiting).transaction,
        format!("{},{}", first.transaction, second.transaction)
    );
}

#[test]
fn assemble__should_refuse_what_was_not_signed() {
    let payload = payload(&[simple(1), simple(2)]);
    let unsigned = build(&payload);
    let [one, two] = [0, 1].map(|place: usize| signature(&unsigned.signing[place].message));
    let assemble = |unsigned: &Unsigned, signatures: &[Signature]| {
        SOLANA.assemble(&payload, unsigned, signatures, &public_key())
    };
    assert!(assemble(&unsigned, &[one.clone(), two.clone()]).is_ok());
    assert!(assemble(&unsigned, std::slice::from_ref(&one)).is_err());
    assert!(assemble(&unsigned, &[two.clone(), one.clone()]).is_err());
    let mut swapped = unsigned.clone();
    swapped.signing.reverse();
    assert!(assemble(&swapped, &[two.clone(), one.clone()]).is_err());
    let mut more = unsigned.clone();
    more.bytes.extend(simple(3).bytes());
    assert!(assemble(&more, &[one.clone(), two.clone()]).is_err());
    let mut foreign = unsigned;
    let strange = legacy(&at(2), &[system::transfer(&at(2), &wallet(), 1)]);
    foreign.bytes = strange.bytes().to_vec();
    foreign.signing = vec![input(strange.message_bytes())];
    let signature = signature(strange.message_bytes());
    assert!(assemble(&foreign, &[signature]).is_err());
}

/// Any message that can be made: legacy, or v0 with tables.
fn any_transaction() -> impl Strategy<Value = WireTransaction> {
    let instruction = (
        0..8_u8,
        prop::collection::vec((0..8_u8, any::<bool>(), any::<bool>()), 0..6),
        prop::collection::vec(any::<u8>(), 0..40),
    );
    let programs = [
        Pubkey::default(),
        TOKEN,
        TOKEN_2022,
        BUDGET,
        Pubkey::from_str_const("Ed25519SigVerify111111111111111111111111111"),
        Pubkey::from_str_const("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL"),
        MEMO,
        at(9),
    ];
    let instructions = prop::collection::vec(instruction, 0..5);
    (instructions, any::<Option<bool>>()).prop_filter_map("too long", move |(list, tables)| {
        let list: Vec<_> = list
            .into_iter()
            .map(|(program, accounts, data)| Instruction {
                program_id: programs[usize::from(program)],
                accounts: accounts
                    .into_iter()
                    .map(|(key, is_signer, is_writable)| AccountMeta {
                        pubkey: at(10 + key),
                        is_signer,
                        is_writable,
                    })
                    .collect(),
                data,
            })
            .collect();
        let message = match tables {
            None => VersionedMessage::Legacy(legacy::Message::new_with_blockhash(
                &list,
                Some(&wallet()),
                &hash(),
            )),
            Some(full) => {
                let held = if full { 10..18 } else { 10..11 };
                let table = AddressLookupTableAccount {
                    key: at(8),
                    addresses: held.map(at).collect(),
                };
                let message = v0::Message::try_compile(&wallet(), &list, &[table], hash());
                VersionedMessage::V0(message.ok()?)
            }
        };
        WireTransaction::unsigned(message).ok()
    })
}

proptest! {
    #[test]
    fn transactions__should_come_back_from_their_bytes(
        mut list in prop::collection::vec(any_transaction(), 1..=5),
    ) {
        for one in &list {
            prop_assert_eq!(WireTransaction::parse(one.bytes()), Ok(one.clone()));
        }
        let bytes: Vec<u8> = list.iter().flat_map(|one| one.bytes().to_vec()).collect();
        prop_assert_eq!(split(&bytes), Some(list.clone()));
        prop_assert_eq!(split(&bytes[..bytes.len() - 1]), None);
        let mut seen = Vec::new();
        list.retain(|one| {
            let new = !seen.contains(&one.message().clone());
            seen.push(one.message().clone());
            new
        });
        let payload = payload(&list);
        prop_assert_eq!(Payload::decode(&payload.encode()).unwrap(), payload.clone());
        let unsigned = build(&payload);
        prop_assert_eq!(split(&unsigned.bytes), Some(list));
        prop_assert!(SOLANA.most_fee(&unsigned.bytes).unwrap() >= U256::from(5000));
        prop_assert_eq!(SOLANA.difference(&unsigned.bytes, &unsigned.bytes), None);
        let _ = payload.outflow(Network::Solana);
        let signed = sign(&payload);
        let read = signed.transaction.split(',').map(|text| {
            WireTransaction::parse(&STANDARD.decode(text).unwrap()).unwrap()
        });
        let blank: Vec<u8> = read.flat_map(|one| one.blank(&wallet()).unwrap().bytes().to_vec()).collect();
        prop_assert_eq!(blank, unsigned.bytes);
    }

    /// A flipped byte is refused or gives another whole transaction, and nothing panics.
    #[test]
    fn reading__should_never_panic(one in any_transaction(), place: usize, value: u8, more: Vec<u8>) {
        let mut bytes = one.bytes().to_vec();
        let place = place % bytes.len();
        bytes[place] = value;
        let _ = parse(vec![STANDARD.encode(&bytes)]).map(|payload| {
            let unsigned = build(&payload);
            (payload.outflow(Network::Solana), SOLANA.most_fee(&unsigned.bytes))
        });
        let _ = SOLANA.difference(one.bytes(), &bytes);
        bytes.extend(&more);
        for bytes in [&bytes, &more] {
            let _ = (split(bytes), SOLANA.most_fee(bytes), SOLANA.difference(bytes, one.bytes()));
        }
    }

    #[test]
    fn bytes__should_never_panic(count in 0..4_u8, bytes: Vec<u8>) {
        let mut all = vec![count];
        all.extend([0; 64].repeat(usize::from(count)));
        all.extend(&bytes);
        let _ = (WireTransaction::parse(&bytes), WireTransaction::parse(&all), split(&all));
        let _ = parse(vec![STANDARD.encode(&all)]);
    }
}

#[test]
fn transactions__should_do_the_same_whatever_their_blockhash_and_price_are() {
    let pay = system::transfer(&wallet(), &at(1), 5);
    let price = call(BUDGET, &[3, 1, 0, 0, 0, 0, 0, 0, 0]);
    let later = |instructions: &[Instruction]| {
        let hash = Hash::new_from_array([9; 32]);
        let message = legacy::Message::new_with_blockhash(instructions, Some(&wallet()), &hash);
        WireTransaction::unsigned(VersionedMessage::Legacy(message)).unwrap()
    };
    let one = payload(&[simple(5)]);
    for same in [
        later(std::slice::from_ref(&pay)),
        later(&[price, pay.clone()]),
    ] {
        let same = payload(&[same]);
        assert!(one != same && one.does_the_same(&same, Network::Solana));
    }
    let nonce = |account| system::advance_nonce_account(&at(account), &wallet());
    let nonces =
        [3, 4].map(|account| payload(&[legacy(&wallet(), &[nonce(account), pay.clone()])]));
    assert!(nonces[0].does_the_same(&nonces[1], Network::Solana));
    assert!(nonces[0].does_the_same(&one, Network::Solana));
    for other in [payload(&[simple(6)]), payload(&[simple(5), later(&[pay])])] {
        assert!(!one.does_the_same(&other, Network::Solana));
    }
}
