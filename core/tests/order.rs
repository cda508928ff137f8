//! A signer node's view of an order: rebuilt from payload and facts, refused when anything in it
//! was changed.

#![allow(non_snake_case)]

#[cfg(test)]
mod order {
    use covault_core::{
        chain::{Facts, SigningInput, evm, solana},
        derive::{KeyPath, RootKey},
        fault::Class,
        ids::{RequestId, VaultId},
        network::Network,
        order::SigningOrder,
        payload::{Payload, WireKind},
        schema::wire,
        signature::Curve,
    };
    use k256::elliptic_curve::sec1::ToSec1Point as _;

    fn root(curve: Curve) -> RootKey {
        let public_key = match curve {
            Curve::Secp256k1 => k256::SecretKey::from_slice(&[7; 32])
                .unwrap()
                .public_key()
                .to_sec1_point(true)
                .as_bytes()
                .to_vec(),
            Curve::Ed25519 => ed25519_dalek::SigningKey::from_bytes(&[7; 32])
                .verifying_key()
                .to_bytes()
                .to_vec(),
        };
        RootKey {
            curve,
            public_key,
            chain_code: [3; 32],
        }
    }

    fn evm_kind(from: String) -> WireKind {
        WireKind::EvmSendNative(wire::EvmSendNative {
            chain_id: 1,
            from,
            to: "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be".into(),
            value: "5".into(),
            ..Default::default()
        })
    }

    fn evm_facts() -> Facts {
        Facts::Evm(evm::Facts {
            nonce: Some(4),
            eip1559: true,
            fees: Some(evm::Fees {
                estimate_gas: 21_000,
                base_fee: 10,
                max_priority_fee: 1,
            }),
        })
    }

    fn solana_kind(from: String) -> WireKind {
        WireKind::SolanaSendNative(wire::SolanaSendNative {
            to: from.clone(),
            from,
            value: "5".into(),
            chain_id: 0,
        })
    }

    fn solana_facts() -> Facts {
        Facts::Solana(solana::Facts {
            recent_blockhash: "B6SMJHxrVJ3t3MXbarfPBmeBKs2k8EtpjZEo2uByrReR".into(),
        })
    }

    fn raw_kind(from: String) -> WireKind {
        WireKind::RawMessage(wire::RawMessage {
            from,
            content: vec![9; 32],
            ecdsa_hash_function: wire::EcdsaHashFunction::UseMessageDirectly.into(),
        })
    }

    fn order(network: Network, kind: impl Fn(String) -> WireKind, facts: Facts) -> SigningOrder {
        let root = root(network.curve());
        let path = KeyPath::new(vec![0, 5]).unwrap();
        let public_key = root.child(&path).unwrap().public_key;
        let chain = network.chain().unwrap();
        let address = chain.address(&public_key).unwrap();
        let payload = Payload::parse(&kind(address.clone())).unwrap();
        let unsigned = chain.build(&payload, &facts, &public_key).unwrap();
        SigningOrder {
            request: RequestId::from_bytes([1; 16]),
            vault: VaultId::from_bytes([2; 16]),
            epoch: 0,
            network,
            root_public_key: root.public_key,
            path,
            public_key,
            address,
            payload: payload.encode(),
            facts,
            unsigned: unsigned.bytes,
            inputs: unsigned.signing,
            issued_at_ms: 1,
            expires_at_ms: 2,
        }
    }

    fn orders() -> [SigningOrder; 4] {
        [
            order(Network::Evm, evm_kind, evm_facts()),
            order(Network::Evm, raw_kind, Facts::Nothing),
            order(Network::Solana, solana_kind, solana_facts()),
            order(Network::Solana, raw_kind, Facts::Nothing),
        ]
    }

    #[test]
    fn order__should_verify_against_the_vaults_root_key() {
        for order in orders() {
            order.verify(&root(order.network.curve())).unwrap();
        }
    }

    #[test]
    fn order__should_be_refused_when_anything_that_is_signed_was_changed() {
        type Change = fn(&mut SigningOrder);
        let changes: [(&str, Change); 9] = [
            ("root key", |order| order.root_public_key[5] ^= 1),
            ("path", |order| {
                order.path = KeyPath::new(vec![0, 6]).unwrap()
            }),
            ("public key", |order| order.public_key[5] ^= 1),
            ("address", |order| order.address.push('0')),
            ("network", |order| order.network = Network::Tron),
            ("payload", |order| {
                order.payload = Payload::parse(&raw_kind(order.address.clone()))
                    .map(|payload| payload.encode())
                    .unwrap();
                order.payload[50] ^= 1;
            }),
            ("message", |order| order.inputs[0].message[0] ^= 1),
            ("one more input", |order| {
                order.inputs.push(SigningInput {
                    curve: order.network.curve(),
                    message: vec![1; 32],
                });
            }),
            ("unsigned", |order| order.unsigned.push(0)),
        ];
        for order in orders() {
            for (what, change) in changes {
                let mut changed = order.clone();
                change(&mut changed);
                let root = root(order.network.curve());
                assert!(changed.verify(&root).is_err(), "{what}");
            }
            let other = RootKey {
                chain_code: [4; 32],
                ..root(order.network.curve())
            };
            assert_eq!(order.verify(&other).unwrap_err().class(), &Class::Invalid);
        }
    }

    #[test]
    fn order__should_be_refused_when_the_facts_were_changed() {
        let mut evm = order(Network::Evm, evm_kind, evm_facts());
        let Facts::Evm(facts) = &mut evm.facts else {
            unreachable!()
        };
        facts.nonce = Some(5);
        let fault = evm.verify(&root(Curve::Secp256k1)).unwrap_err();
        assert!(fault.public().starts_with("unsigned: "), "{fault}");
        let mut solana = order(Network::Solana, solana_kind, solana_facts());
        solana.facts = Facts::Nothing;
        assert!(solana.verify(&root(Curve::Ed25519)).is_err());
    }
}
