//! What is built, signed and read again.

use bitcoin::{EcdsaSighashType, Network as BitcoinNetwork, TxOut, WPubkeyHash, hashes::Hash as _};
use proptest::prelude::*;

use super::*;

fn values(outputs: &[TxOut]) -> Vec<u64> {
    outputs.iter().map(|output| output.value.to_sat()).collect()
}

#[test]
fn build__should_not_depend_on_the_order_of_the_facts() {
    let payload = send(P2WPKH, 50_000, 1);
    let mut outputs = unspent(&[20_000, 30_000, 20_000, 20_000, 5000]);
    let mut built = BTreeSet::new();
    for _ in 0..5 {
        outputs.rotate_left(1);
        let chain_data = networks::ChainData::Bitcoin(ChainData {
            outputs: outputs.clone(),
            ..Default::default()
        });
        built.insert(build(&payload, &chain_data).unwrap().bytes);
        outputs.reverse();
    }
    assert_eq!(built.len(), 1);
}

#[test]
fn inputs__should_be_the_largest_then_the_first_by_shown_txid() {
    // On the wire the bytes stand the other way around: by those 01..ff would come after 02..00.
    let txid = |first: &str, last: &str| format!("{first}{}{last}", "00".repeat(30));
    let output = |txid: String, vout, value| UnspentOutput { txid, vout, value };
    let outputs = vec![
        output(txid("02", "00"), 0, 10_000),
        output(txid("01", "ff"), 1, 10_000),
        output(txid("01", "ff"), 0, 10_000),
        output(txid("ff", "00"), 9, 10_001),
    ];
    let chain_data = networks::ChainData::Bitcoin(ChainData {
        outputs,
        ..Default::default()
    });
    let payload = send(P2WPKH, 35_000, 1);
    let unsigned = build(&payload, &chain_data).unwrap();
    let reservations = BITCOIN.reservations(&payload, &unsigned).unwrap();
    let piece = |txid: String, vout: u32| Resource::Object(format!("{txid}:{vout}"));
    assert_eq!(
        reservations,
        [
            piece(txid("ff", "00"), 9),
            piece(txid("01", "ff"), 0),
            piece(txid("01", "ff"), 1),
            piece(txid("02", "00"), 0),
        ]
    );
}

#[test]
fn change__should_go_back_unless_it_is_dust() {
    // 110 vB without change, 141 with it.
    for (value, outputs, fee) in [
        (50_110, vec![50_000], 110),
        (50_434, vec![50_000], 434),
        (50_435, vec![50_000, 294], 141),
        (60_000, vec![50_000, 9859], 141),
    ] {
        let payload = send(P2WPKH, 50_000, 1);
        let (transaction, psbt) = run(&payload, &chain_data(&[value]));
        assert_eq!(values(&transaction.output), outputs);
        assert_eq!(
            BITCOIN.most_fee(&psbt.serialize()).unwrap(),
            U256::from(fee)
        );
        if let Some(change) = transaction.output.get(1) {
            assert_eq!(change.script_pubkey, own());
        }
    }
}

#[test]
fn batch__should_pay_for_the_longer_count_of_its_outputs() {
    let all: Vec<(&str, u64)> = vec![(P2WPKH, 1000); 254];
    for (rate, count, value, outputs, more) in [
        (1, 251, 1_000_000, 252, 0),
        (1, 252, 1_000_000, 253, 2),
        (1, 254, 1_000_000, 255, 2),
        (1, 254, 254_000 + 8000, 254, 2),
        (2, 254, 1_000_000, 255, 0),
    ] {
        let payload = many(&all[..count], rate);
        let value = if outputs == count {
            254_000 + (42 + 272 + 124 * 254_u64).div_ceil(4) + 2
        } else {
            value
        };
        let (transaction, psbt) = run(&payload, &chain_data(&[value]));
        assert_eq!(transaction.output.len(), outputs);
        let vsize = (42 + 272 + 124 * outputs as u64).div_ceil(4);
        let fee = BITCOIN.most_fee(&psbt.serialize()).unwrap();
        assert_eq!(fee, U256::from(rate * vsize + more));
        assert!(fee >= U256::from(transaction.vsize()));
    }
}

#[test]
fn difference__should_name_the_first_thing() {
    let rich = chain_data(&[100_000]);
    let built = build(&send(P2WPKH, 50_000, 2), &rich).unwrap().bytes;
    let two = |chain_data: &networks::ChainData, recipients: &[(&str, u64)]| {
        let payload = many(recipients, 2);
        build(&payload, chain_data).unwrap().bytes
    };
    let mut locked = Psbt::deserialize(&built).unwrap();
    locked.unsigned_tx.lock_time = bitcoin::absolute::LockTime::from_consensus(1);
    for (shown, what) in [
        (
            build(&send(P2PKH, 50_000, 2), &rich).unwrap().bytes,
            Some("recipient"),
        ),
        (
            two(&rich, &[(P2WPKH, 50_000), (P2PKH, 1000)]),
            Some("recipient"),
        ),
        (
            build(&send(P2WPKH, 50_001, 2), &rich).unwrap().bytes,
            Some("amount"),
        ),
        (
            build(&send(P2WPKH, 50_000, 2), &chain_data(&[99_999]))
                .unwrap()
                .bytes,
            Some("inputs"),
        ),
        (
            build(&send(P2WPKH, 50_000, 2), &chain_data(&[1, 100_000]))
                .unwrap()
                .bytes,
            Some("inputs"),
        ),
        (
            build(&send(P2WPKH, 50_000, 3), &rich).unwrap().bytes,
            Some("networkFee"),
        ),
        (locked.serialize(), None),
        (built.clone(), None),
        (Vec::new(), None),
    ] {
        assert_eq!(BITCOIN.difference(&built, &shown), what);
    }
}

#[test]
fn assemble__should_refuse_what_was_not_built() {
    let payload = send(P2WPKH, 50_000, 1);
    let unsigned = build(&payload, &chain_data(&[30_000, 31_000])).unwrap();
    let good = signatures(&unsigned);
    let assemble = |unsigned: &Unsigned, signatures: &[Signature]| {
        BITCOIN.assemble(&payload, unsigned, signatures, &public_key())
    };
    assert!(assemble(&unsigned, &good).unwrap().is_some());
    let swapped = [good[1].clone(), good[0].clone()];
    let ed25519 = Signature::Ed25519 {
        r: [1; 32],
        s: [1; 32],
    };
    for bad in [
        &[][..],
        &good[..1],
        &swapped,
        &[good[0].clone(), ed25519.clone()],
        &[good.clone(), good.clone()].concat(),
    ] {
        let fault = assemble(&unsigned, bad).unwrap_err();
        assert_eq!(fault.class(), &Class::Bug);
    }
    // Fewer signatures than inputs, and the right number of them for what is said to be signed.
    let mut fewer = unsigned.clone();
    fewer.signing.pop();
    assert!(assemble(&fewer, &good[..1]).is_err());
    for index in 0..unsigned.bytes.len() {
        let mut other = unsigned.clone();
        other.bytes[index] ^= 1;
        assert!(assemble(&other, &good).is_err(), "{index}");
    }
    let mut signed = Psbt::deserialize(&unsigned.bytes).unwrap();
    signed.inputs[0].final_script_sig = Some(ScriptBuf::new());
    let mut other = unsigned.clone();
    other.bytes = signed.serialize();
    assert!(assemble(&other, &good).is_err());
    assert!(BITCOIN.most_fee(&other.bytes).is_err());
}

#[test]
fn read__should_take_what_was_written_and_nothing_else() {
    let unsigned = build(&send(P2WPKH, 50_000, 1), &chain_data(&[60_000])).unwrap();
    let good = Psbt::deserialize(&unsigned.bytes).unwrap();
    let changed = |change: fn(&mut Psbt)| {
        let mut psbt = good.clone();
        change(&mut psbt);
        psbt.serialize()
    };
    let longer = [unsigned.bytes.as_slice(), &[0]].concat();
    for bytes in [
        b"psbt".to_vec(),
        longer,
        vec![0; 400_001],
        changed(|psbt| psbt.inputs[0].witness_utxo = None),
        changed(|psbt| psbt.inputs[0].sighash_type = Some(EcdsaSighashType::None.into())),
        changed(|psbt| psbt.version = 1),
        // More is paid than spent.
        changed(|psbt| psbt.unsigned_tx.output[0].value = Amount::MAX_MONEY),
        changed(|psbt| {
            let more = TxOut {
                value: Amount::from_sat(u64::MAX),
                script_pubkey: ScriptBuf::new(),
            };
            psbt.unsigned_tx.output.push(more);
            psbt.outputs.push(Default::default());
        }),
    ] {
        let fault = BITCOIN.most_fee(&bytes).unwrap_err();
        assert_eq!(fault.class(), &Class::Bug);
    }
    assert_eq!(BITCOIN.most_fee(&[]).unwrap(), U256::ZERO);
    // An input of another wallet.
    let mut foreign = good.clone();
    let script = ScriptBuf::new_p2wpkh(&WPubkeyHash::from_byte_array([1; 20]));
    foreign.inputs[0]
        .witness_utxo
        .as_mut()
        .unwrap()
        .script_pubkey = script;
    let draft = UnsignedPsbt::read(&foreign.serialize()).unwrap();
    assert!(draft.digests(&own()).is_err());
}

fn payment() -> impl Strategy<Value = (Vec<(String, u64)>, u64)> {
    let recipient = (recipient(), 546..100_000_000_u64);
    let recipients = prop::collection::vec(recipient, 1..8);
    (recipients, prop_oneof![1..20_u64, 1..=10_000_u64])
}

fn parsed((recipients, rate): &(Vec<(String, u64)>, u64)) -> Payload {
    match recipients.as_slice() {
        [(to, amount)] => send(to, *amount, *rate),
        all => {
            let all: Vec<_> = all
                .iter()
                .map(|(to, amount)| (to.as_str(), *amount))
                .collect();
            many(&all, *rate)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn transaction__should_do_what_the_payload_says(
        payment in payment(),
        coins in prop::collection::vec(1..200_000_000_u64, 1..12),
    ) {
        let payload = parsed(&payment);
        let (recipients, rate) = &payment;
        let amount: u64 = recipients.iter().map(|(_, amount)| amount).sum();
        match build(&payload, &chain_data(&coins)) {
            Ok(unsigned) => {
                let (transaction, psbt) = run(&payload, &chain_data(&coins));
                let mut unsigned_tx = transaction.clone();
                for (index, input) in unsigned_tx.input.iter_mut().enumerate() {
                    let witness = std::mem::take(&mut input.witness).to_vec();
                    prop_assert_eq!(&witness[1], &public_key());
                    let signature = bitcoin::ecdsa::Signature::from_slice(&witness[0]).unwrap();
                    let digest = &unsigned.signing[index].message;
                    let message = secp256k1::Message::from_digest_slice(digest).unwrap();
                    let key = key(&public_key()).unwrap();
                    let secp = secp256k1::Secp256k1::verification_only();
                    prop_assert!(key.verify(&secp, &message, &signature).is_ok());
                    prop_assert!(input.sequence.is_rbf());
                }
                prop_assert_eq!(&unsigned_tx, &psbt.unsigned_tx);
                prop_assert!(!transaction.is_lock_time_enabled() || transaction.lock_time.to_consensus_u32() == 0);
                let (to, change) = transaction.output.split_at(recipients.len());
                for (output, (address, amount)) in to.iter().zip(recipients) {
                    let shown = Address::from_script(&output.script_pubkey, BitcoinNetwork::Bitcoin);
                    prop_assert_eq!(&shown.unwrap().to_string(), address);
                    prop_assert_eq!(output.value.to_sat(), *amount);
                }
                prop_assert!(change.len() <= 1);
                for output in change {
                    prop_assert_eq!(&output.script_pubkey, &own());
                    prop_assert!(output.value.to_sat() >= 294);
                }
                let fee = psbt.fee().unwrap().to_sat();
                prop_assert_eq!(BITCOIN.most_fee(&unsigned.bytes).unwrap(), U256::from(fee));
                // Never below the rate, and above it by less than change and its output cost.
                let least = rate * transaction.vsize() as u64;
                prop_assert!(fee >= least);
                prop_assert!(fee < least + rate * (31 + 2 + transaction.input.len() as u64) + 294);
                // One coin less would not do.
                let spent: Vec<u64> = psbt.iter_funding_utxos().map(|coin| coin.unwrap().value.to_sat()).collect();
                prop_assert!(spent.is_sorted_by(|a, b| a >= b));
                let fewer: u64 = spent.iter().take(spent.len() - 1).sum();
                prop_assert!(fewer < amount + fee);
                let reservations: BTreeSet<_> = BITCOIN.reservations(&payload, &unsigned).unwrap().into_iter().collect();
                prop_assert_eq!(reservations.len(), transaction.input.len());
                let settled = BITCOIN.allocate(&payload, chain_data(&coins), &BTreeSet::new()).unwrap();
                let Allocation::ChainData(settled) = settled else { panic!() };
                prop_assert_eq!(build(&payload, &settled).unwrap(), unsigned);
                // Whatever else is taken is not touched.
                match BITCOIN.allocate(&payload, chain_data(&coins), &reservations).unwrap() {
                    Allocation::Wait(_) => {}
                    Allocation::ChainData(rest) => {
                        let rest = build(&payload, &rest).unwrap();
                        let rest = BITCOIN.reservations(&payload, &rest).unwrap();
                        prop_assert!(rest.iter().all(|piece| !reservations.contains(piece)));
                    }
                }
            }
            Err(fault) => {
                prop_assert_eq!(fault.execute_code(), ExecuteCode::InsufficientFunds);
                let all = tx::coins(&ChainData { outputs: unspent(&coins), ..Default::default() }).unwrap();
                // The value's 8 bytes, the script and its length.
                let outputs: u64 = recipients.iter().map(|(to, _)| 9 + parse_address(to).unwrap().script_pubkey().len() as u64).sum();
                let mut sum = 0;
                for (count, coin) in (1..).zip(&all) {
                    sum += coin.value;
                    // An input takes 68 vB and the rest, without change, 11 at most.
                    prop_assert!(sum < amount + rate * (68 * count + outputs + 11));
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn unsigned__should_never_panic(bytes: Vec<u8>, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut: prop::sample::Index) {
        let payload = send(P2WPKH, 50_000, 1);
        let built = build(&payload, &chain_data(&[30_000, 31_000])).unwrap();
        let mut changed = built.bytes.clone();
        for (at, value) in changes {
            let at = at.index(changed.len());
            changed[at] = value;
        }
        let cut = built.bytes[..cut.index(built.bytes.len())].to_vec();
        let magic = [b"psbt\xff".as_slice(), &bytes].concat();
        for bytes in [bytes, magic, changed, cut] {
            let _ = BITCOIN.most_fee(&bytes);
            let _ = BITCOIN.difference(&built.bytes, &bytes);
            let unsigned = Unsigned { bytes, signing: built.signing.clone() };
            let _ = BITCOIN.reservations(&payload, &unsigned);
            let _ = BITCOIN.assemble(&payload, &unsigned, &signatures(&built), &public_key());
        }
    }
}
