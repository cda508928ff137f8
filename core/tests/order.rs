//! A signer node's view of an order: rebuilt from payload and chain data, refused when anything in it
//! was changed.

#![allow(non_snake_case)]

#[cfg(test)]
mod order {
    use covault_core::{
        approval::OrderApprovals,
        derive::{KeyPath, RootKey},
        fault::Class,
        ids::{RequestId, VaultId},
        networks::{ChainData, Network, Payload, WireKind, evm, solana, sui},
        order::SigningOrder,
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

    fn evm_wire(from: &str) -> wire::EvmSendNative {
        wire::EvmSendNative {
            chain_id: 1,
            from: from.into(),
            to: "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be".into(),
            value: "5".into(),
            ..Default::default()
        }
    }

    fn evm_kind(from: String) -> WireKind {
        WireKind::EvmSendNative(evm_wire(&from))
    }

    fn evm_facts() -> ChainData {
        ChainData::Evm(evm::ChainData {
            nonce: Some(4),
            eip1559: true,
            fees: Some(evm::Fees {
                estimate_gas: 21_000,
                base_fee: 10,
                max_priority_fee: 1,
            }),
        })
    }

    fn solana_wire(from: &str) -> wire::SolanaSendNative {
        wire::SolanaSendNative {
            from: from.into(),
            to: "4Nd1mBQtrMJVYVfKf2PJy9NZUZdTAsp7D4xWLs4gDB4T".into(),
            value: "5".into(),
            ..Default::default()
        }
    }

    fn solana_kind(from: String) -> WireKind {
        WireKind::SolanaSendNative(solana_wire(&from))
    }

    fn solana_facts() -> ChainData {
        ChainData::Solana(solana::ChainData {
            recent_blockhash: "B6SMJHxrVJ3t3MXbarfPBmeBKs2k8EtpjZEo2uByrReR".into(),
            token: None,
            compute: None,
        })
    }

    fn raw_kind(from: String) -> WireKind {
        WireKind::RawMessage(wire::RawMessage {
            from,
            content: vec![9; 32],
            ecdsa_hash_function: wire::EcdsaHashFunction::UseMessageDirectly.into(),
        })
    }

    fn order(
        network: Network,
        kind: impl Fn(String) -> WireKind,
        chain_data: ChainData,
    ) -> SigningOrder {
        let root = root(network.curve());
        let path = KeyPath::of_wallet(network, 5).unwrap();
        let public_key = root.child(&path).unwrap().public_key;
        let chain = network.rules();
        let address = chain.address(&public_key).unwrap();
        let payload = Payload::parse(&kind(address.clone())).unwrap();
        let unsigned = chain.build(&payload, &chain_data, &public_key).unwrap();
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
            chain_data,
            unsigned: unsigned.bytes,
            inputs: unsigned.signing,
            recipient_indices: Vec::new(),
            approvals: OrderApprovals::default(),
            issued_at_ms: 1,
            expires_at_ms: 2,
        }
    }

    fn orders() -> [SigningOrder; 4] {
        [
            order(Network::Evm, evm_kind, evm_facts()),
            order(Network::Evm, raw_kind, ChainData::Nothing),
            order(Network::Solana, solana_kind, solana_facts()),
            order(Network::Solana, raw_kind, ChainData::Nothing),
        ]
    }

    #[test]
    fn order__should_verify_against_the_vaults_root_key() {
        for order in orders() {
            order.verify(&root(order.network.curve())).unwrap();
        }
    }

    type Change = fn(&mut SigningOrder);

    /// Applies the change to each order and compares the field that the refusal begins with.
    fn refused(orders: &[SigningOrder], changes: &[(&str, Change)]) {
        for order in orders {
            for (field, change) in changes {
                let mut changed = order.clone();
                change(&mut changed);
                let root = root(order.network.curve());
                let fault = changed.verify(&root).unwrap_err();
                assert_eq!(fault.class(), &Class::Invalid, "{field}: {fault:?}");
                let named = fault.message().split(": ").next().unwrap_or_default();
                assert_eq!(named, *field, "{fault:?}");
            }
        }
    }

    #[test]
    fn order__should_be_refused_by_field_when_anything_that_is_signed_was_changed() {
        let changes: [(&str, Change); 9] = [
            ("rootPublicKey", |order| order.root_public_key[5] ^= 1),
            ("path", |order| {
                order.path = KeyPath::of_wallet(order.network, 6).unwrap()
            }),
            ("publicKey", |order| order.public_key[5] ^= 1),
            ("address", |order| order.address.push('0')),
            // Of the other curve. One of the same curve has other addresses.
            ("network", |order| {
                order.network = match order.network.curve() {
                    Curve::Secp256k1 => Network::Solana,
                    Curve::Ed25519 => Network::Evm,
                };
            }),
            ("payload", |order| order.payload.push(1)),
            ("inputs[0].message", |order| order.inputs[0].message[0] ^= 1),
            ("inputs", |order| {
                order.inputs.push(order.inputs[0].clone());
            }),
            ("inputs", |order| order.inputs.clear()),
        ];
        refused(&orders(), &changes);
        refused(&orders(), &[("unsigned", |order| order.unsigned.push(0))]);
        refused(
            &orders()[..2],
            &[("path", |order| order.network = Network::Tron)],
        );
        for order in orders() {
            let other = RootKey {
                chain_code: [4; 32],
                ..root(order.network.curve())
            };
            let fault = order.verify(&other).unwrap_err();
            assert!(fault.message().starts_with("path: "), "{fault:?}");
        }
    }

    /// The bytes name a coin object and not its type: facts that do not show it could make one
    /// token of another.
    #[test]
    fn order__should_be_refused_when_coins_do_not_show_their_type() {
        let pay = |coin_tag: &'static str| {
            move |from: String| {
                WireKind::SuiSendCoin(wire::SuiSendCoin {
                    recipients: vec![],
                    to: from.clone(),
                    from,
                    coin_tag: coin_tag.into(),
                    amount: "5".into(),
                    gas_fee: Some(wire::SuiGas {
                        budget: Some("1000".into()),
                        price: Some("10".into()),
                    }),
                })
            }
        };
        let coin = |digit: &str| sui::CoinObject {
            object_id: format!("0x{}", digit.repeat(64)),
            version: 3,
            digest: "4vJ9JU1bJJE96FWSJKvHsmmFADCg4gpZQff4P3bkLKi".into(),
            balance: 1_005,
            origin: None,
        };
        let chain_data = |coins| {
            ChainData::Sui(sui::ChainData {
                reference_gas_price: None,
                gas_used: None,
                sui_coins: vec![coin("1")],
                sui_address_balance: 0,
                coins,
                coin_address_balance: 0,
                required: Vec::new(),
                validity: None,
            })
        };
        let root = root(Curve::Ed25519);
        let sui = order(Network::Sui, pay("0x2::sui::SUI"), chain_data(vec![]));
        sui.verify(&root).unwrap();
        let token = order(
            Network::Sui,
            pay("0xabc::tok::TOK"),
            chain_data(vec![coin("2")]),
        );
        let fault = token.verify(&root).unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        assert!(
            fault.message().starts_with("chainData: do not show"),
            "{fault:?}"
        );
    }

    /// As the order, with the payload of another wallet.
    #[test]
    fn order__should_be_refused_when_the_payload_is_of_another_wallet() {
        for (network, kind) in [
            (Network::Evm, evm_kind as fn(String) -> WireKind),
            (Network::Evm, raw_kind),
            (Network::Solana, solana_kind),
            (Network::Solana, raw_kind),
        ] {
            let chain_data = || match (network, kind(String::new())) {
                (_, WireKind::RawMessage(_)) => ChainData::Nothing,
                (Network::Evm, _) => evm_facts(),
                (_, _) => solana_facts(),
            };
            let mut order = order(network, kind, chain_data());
            let other = match network {
                Network::Evm => "0x37b5ba07902c51ef69dE0BbEa42A11a1A94e3ff6",
                _ => "CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS",
            };
            let payload = Payload::parse(&kind(other.into())).unwrap();
            order.payload = payload.encode();
            let fault = order.verify(&root(network.curve())).unwrap_err();
            let field = format!("payload.{}.from: ", payload.kind());
            assert!(fault.message().starts_with(&field), "{fault:?}");
        }
    }

    fn exchange(order: &mut SigningOrder, kind: WireKind) {
        order.payload = Payload::parse(&kind).unwrap().encode();
    }

    #[test]
    fn order__should_be_refused_by_field_when_transaction_and_payload_differ() {
        let evm: [(&str, Change); 6] = [
            ("unsigned.recipient", |order| {
                let kind = wire::EvmSendNative {
                    to: "0x37b5ba07902c51ef69dE0BbEa42A11a1A94e3ff6".into(),
                    ..evm_wire(&order.address)
                };
                exchange(order, WireKind::EvmSendNative(kind));
            }),
            ("unsigned.amount", |order| {
                let kind = wire::EvmSendNative {
                    value: "6".into(),
                    ..evm_wire(&order.address)
                };
                exchange(order, WireKind::EvmSendNative(kind));
            }),
            ("unsigned.chainId", |order| {
                let kind = wire::EvmSendNative {
                    chain_id: 10,
                    ..evm_wire(&order.address)
                };
                exchange(order, WireKind::EvmSendNative(kind));
            }),
            ("unsigned.nonce", |order| {
                let ChainData::Evm(chain_data) = &mut order.chain_data else {
                    unreachable!()
                };
                chain_data.nonce = Some(5);
            }),
            ("unsigned.gasFee", |order| {
                let ChainData::Evm(chain_data) = &mut order.chain_data else {
                    unreachable!()
                };
                chain_data.fees.as_mut().unwrap().base_fee += 1;
            }),
            ("chainData", |order| order.chain_data = ChainData::Nothing),
        ];
        refused(&[order(Network::Evm, evm_kind, evm_facts())], &evm);
        let solana: [(&str, Change); 4] = [
            ("unsigned.recipient", |order| {
                let kind = wire::SolanaSendNative {
                    to: "CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS".into(),
                    ..solana_wire(&order.address)
                };
                exchange(order, WireKind::SolanaSendNative(kind));
            }),
            ("unsigned.amount", |order| {
                let kind = wire::SolanaSendNative {
                    value: "6".into(),
                    ..solana_wire(&order.address)
                };
                exchange(order, WireKind::SolanaSendNative(kind));
            }),
            ("unsigned.recentBlockhash", |order| {
                order.chain_data = ChainData::Solana(solana::ChainData {
                    recent_blockhash: "CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS".into(),
                    token: None,
                    compute: None,
                });
            }),
            ("chainData", |order| order.chain_data = ChainData::Nothing),
        ];
        refused(
            &[order(Network::Solana, solana_kind, solana_facts())],
            &solana,
        );
    }

    #[test]
    fn order__should_be_refused_by_field_when_tokens_go_elsewhere() {
        fn token_wire(from: &str) -> wire::EvmSendErc20 {
            wire::EvmSendErc20 {
                chain_id: 1,
                from: from.into(),
                to: "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be".into(),
                token_contract_address: "0xdAC17F958D2ee523a2206206994597C13D831ec7".into(),
                amount: "7".into(),
                ..Default::default()
            }
        }
        let chain_data = ChainData::Evm(evm::ChainData {
            nonce: Some(4),
            eip1559: false,
            fees: Some(evm::Fees {
                estimate_gas: 60_000,
                base_fee: 10,
                max_priority_fee: 0,
            }),
        });
        let kind = |from: String| WireKind::EvmSendErc20(token_wire(&from));
        let changes: [(&str, Change); 3] = [
            ("unsigned.recipient", |order| {
                let kind = wire::EvmSendErc20 {
                    to: order.address.clone(),
                    ..token_wire(&order.address)
                };
                exchange(order, WireKind::EvmSendErc20(kind));
            }),
            ("unsigned.amount", |order| {
                let kind = wire::EvmSendErc20 {
                    amount: "8".into(),
                    ..token_wire(&order.address)
                };
                exchange(order, WireKind::EvmSendErc20(kind));
            }),
            // The contract is whom the transaction calls.
            ("unsigned.recipient", |order| {
                let kind = wire::EvmSendErc20 {
                    token_contract_address: order.address.clone(),
                    ..token_wire(&order.address)
                };
                exchange(order, WireKind::EvmSendErc20(kind));
            }),
        ];
        refused(&[order(Network::Evm, kind, chain_data)], &changes);
    }

    #[test]
    fn chain__should_tell_the_most_that_a_transaction_costs() {
        let fee = |order: &SigningOrder| {
            let chain = order.network.rules();
            chain.most_fee(&order.unsigned).unwrap().to_string()
        };
        let [native, message, solana, _] = orders();
        // All gas at twice the base fee and the tip.
        assert_eq!(fee(&native), (21_000 * 21).to_string());
        assert_eq!(fee(&message), "0");
        assert_eq!(fee(&solana), "5000");
        let mut cut = native.clone();
        cut.unsigned.truncate(5);
        let chain = cut.network.rules();
        assert!(chain.most_fee(&cut.unsigned).is_err());
    }
}
