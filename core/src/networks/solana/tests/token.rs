use solana_message::compiled_instruction::CompiledInstruction;

use super::{
    super::super::{
        effect,
        token::{AccountInfo, TOKEN, TOKEN_2022, TokenChainData, TokenQueries, associated_account},
    },
    *,
};
use crate::fault::{Class, ExecuteCode};

const MINT: &str = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v";
/// What a new account of the Token program must hold, and the largest of Token-2022.
const DEPOSIT: u64 = 2_039_280;
const DEPOSIT_2022: u64 = 2_248_080;

pub(super) fn to() -> String {
    Pubkey::new_from_array([9; 32]).to_string()
}

fn wire() -> wire::SolanaSendSplToken {
    wire::SolanaSendSplToken {
        from: from(),
        to: to(),
        mint_address: MINT.into(),
        amount: "1500".into(),
        chain_id: 101,
        ..Default::default()
    }
}

pub(super) fn payload(change: impl FnOnce(&mut wire::SolanaSendSplToken)) -> Payload {
    let mut wire = wire();
    change(&mut wire);
    Payload::parse(&WireKind::SolanaSendSplToken(wire)).unwrap()
}

pub(super) fn known() -> TokenChainData {
    TokenChainData {
        program: TOKEN.to_string(),
        decimals: 6,
        sender_account_owner: Some(from()),
        recipient_account_owner: Some(to()),
        recipient_program: None,
        transfer_fee: None,
    }
}

pub(super) fn chain_data(change: impl FnOnce(&mut TokenChainData)) -> networks::ChainData {
    let mut token = known();
    change(&mut token);
    networks::ChainData::Solana(ChainData {
        recent_blockhash: BLOCKHASH.into(),
        token: Some(Box::new(token)),
        compute: None,
    })
}

pub(super) fn build(
    payload: &Payload,
    chain_data: &networks::ChainData,
) -> Result<Unsigned, Fault> {
    SOLANA.build(payload, chain_data, &public_key())
}

pub(super) fn queries() -> TokenQueries {
    match SOLANA.queries(&payload(|_| {})) {
        networks::Queries::Solana(Queries {
            chain_id: 101,
            blockhash: true,
            token: Some(token),
            compute: Some(_),
        }) => token,
        other => panic!("{other:?}"),
    }
}

pub(super) fn keys() -> (Pubkey, Pubkey, Pubkey) {
    let key = |text: &str| parse_key(text).unwrap();
    (key(&from()), key(&to()), key(MINT))
}

pub(super) fn mint_data(decimals: u8) -> Vec<u8> {
    let mut data = vec![0; 82];
    (data[44], data[45]) = (decimals, 1);
    data
}

pub(super) fn account_data(mint: &Pubkey, owner: &Pubkey) -> Vec<u8> {
    let mut data = vec![0; 165];
    data[..32].copy_from_slice(mint.as_array());
    data[32..64].copy_from_slice(owner.as_array());
    data[108] = 1;
    data
}

fn extended(mut data: Vec<u8>, kind: u8) -> Vec<u8> {
    data.resize(165, 0);
    data.push(kind);
    data.extend([7, 0, 0, 0]);
    data
}

pub(super) fn account(owner: &Pubkey, data: Vec<u8>) -> Option<AccountInfo> {
    let owner = owner.to_string();
    Some(AccountInfo { owner, data })
}

#[test]
fn needs__should_name_the_token_and_all_accounts_of_both_programs() {
    let (sender, recipient, mint) = keys();
    let accounts = queries().accounts().unwrap();
    let expected = [
        mint,
        recipient,
        associated_account(&sender, &mint, &TOKEN),
        associated_account(&recipient, &mint, &TOKEN),
        associated_account(&sender, &mint, &TOKEN_2022),
        associated_account(&recipient, &mint, &TOKEN_2022),
    ];
    assert_eq!(accounts, expected.map(|key| key.to_string()));
    let broken = TokenQueries {
        mint: "no".into(),
        ..queries()
    };
    assert_eq!(*broken.accounts().unwrap_err().class(), Class::Bug);
    assert!(!SOLANA.is_sequenced(&SOLANA.queries(&payload(|_| {}))));
}

#[test]
fn facts__should_come_of_the_accounts() {
    let (sender, recipient, mint) = keys();
    let (system, other) = (Pubkey::default(), Pubkey::new_from_array([3; 32]));
    let held = |by: &Pubkey| account(&TOKEN, account_data(&mint, by));
    let held_2022 = |by: &Pubkey| account(&TOKEN_2022, extended(account_data(&mint, by), 2));
    let token = |mint: Option<AccountInfo>, wallet, sender, recipient| {
        let none = (None, None);
        let [one, two] = match &mint {
            Some(account) if account.owner == TOKEN_2022.to_string() => [none, (sender, recipient)],
            _ => [(sender, recipient), none],
        };
        queries().chain_data(&[mint, wallet, one.0, one.1, two.0, two.1])
    };
    let usual = token(
        account(&TOKEN, mint_data(6)),
        account(&system, vec![]),
        held(&sender),
        held(&recipient),
    );
    let recipient_program = Some(system.to_string());
    assert_eq!(
        usual,
        Ok(TokenChainData {
            recipient_program,
            ..known()
        })
    );
    // Extended or not, for a mint as for an account.
    for data in [mint_data(0), extended(mint_data(0), 1)] {
        let chain_data = token(
            account(&TOKEN_2022, data),
            None,
            held_2022(&sender),
            account(&TOKEN_2022, account_data(&mint, &recipient)),
        );
        assert_eq!(
            chain_data,
            Ok(TokenChainData {
                program: TOKEN_2022.to_string(),
                decimals: 0,
                ..known()
            })
        );
    }
    // There is something at the address, but no account for the token.
    for nothing in [
        None,
        account(&system, vec![]),
        account(&TOKEN, vec![0; 165]),
        account(&TOKEN, account_data(&other, &recipient)),
        account(&TOKEN_2022, account_data(&mint, &recipient)),
        account(&TOKEN, extended(account_data(&mint, &recipient), 2)),
        account(&TOKEN, vec![1; 355]),
    ] {
        let mint = account(&TOKEN, mint_data(6));
        let chain_data = token(mint, None, held(&sender), nothing).unwrap();
        assert_eq!(chain_data.recipient_account_owner, None);
    }
    let stolen = token(
        account(&TOKEN, mint_data(6)),
        None,
        held(&other),
        held(&other),
    );
    let stolen = stolen.unwrap();
    assert_eq!(stolen.sender_account_owner, Some(other.to_string()));
    assert_eq!(stolen.recipient_account_owner, Some(other.to_string()));

    let mut young = mint_data(6);
    young[45] = 0;
    let multisig = [mint_data(6), vec![1; 355 - 82]].concat();
    for (mint, sentence) in [
        (None, "mintAddress: does not exist"),
        (
            account(&system, mint_data(6)),
            "mintAddress: is not a token",
        ),
        (account(&TOKEN, young), "mintAddress: is not a token"),
        (
            account(&TOKEN, account_data(&mint, &sender)),
            "mintAddress: is not a token",
        ),
        (
            account(&TOKEN, extended(mint_data(6), 1)),
            "mintAddress: is not a token",
        ),
        (
            account(&TOKEN_2022, extended(mint_data(6), 2)),
            "mintAddress: is not a token",
        ),
        (
            account(&TOKEN_2022, multisig),
            "mintAddress: is not a token",
        ),
        (account(&TOKEN, vec![]), "mintAddress: is not a token"),
    ] {
        let fault = token(mint, None, None, None).unwrap_err();
        assert_eq!(*fault.class(), Class::Invalid);
        assert!(fault.message().starts_with(sentence), "{fault}");
    }
    assert_eq!(*queries().chain_data(&[]).unwrap_err().class(), Class::Bug);
}

#[test]
fn build__should_refuse_what_the_chain_contradicts() {
    type Change = fn(&mut TokenChainData);
    let cases: [(Change, &str); 8] = [
        (
            |chain_data| chain_data.program = Pubkey::default().to_string(),
            "mintAddress: is not a token",
        ),
        (
            |chain_data| chain_data.program = "no".into(),
            "mintAddress: is not a token",
        ),
        (
            |chain_data| chain_data.decimals = 7,
            "decimals: do not match the token's; omit or correct them",
        ),
        (
            |chain_data| chain_data.recipient_program = Some(TOKEN.to_string()),
            "to: belongs to a token program",
        ),
        (
            |chain_data| chain_data.recipient_program = Some(TOKEN_2022.to_string()),
            "to: belongs to a token program",
        ),
        (
            |chain_data| chain_data.sender_account_owner = None,
            "from: holds none of this token",
        ),
        (
            |chain_data| chain_data.sender_account_owner = Some(MINT.into()),
            "from: no longer owns its account for this token",
        ),
        (
            |chain_data| chain_data.recipient_account_owner = Some(MINT.into()),
            "to: no longer owns its account for this token; use another address",
        ),
    ];
    let given = payload(|wire| wire.decimals = Some(6));
    assert!(build(&given, &chain_data(|_| {})).is_ok());
    for (change, sentence) in cases {
        let fault = build(&given, &chain_data(change)).unwrap_err();
        assert_eq!(*fault.class(), Class::Invalid);
        let sentence = format!("solanaSendSplToken.{sentence}");
        assert!(fault.message().starts_with(&sentence), "{fault}");
        let poor = sentence.contains("holds none");
        assert_eq!(fault.execute_code() == ExecuteCode::InsufficientFunds, poor);
    }
    // A recipient that is a wallet, or a program's, is nothing special.
    let system = Pubkey::default().to_string();
    assert!(
        build(
            &given,
            &chain_data(|chain_data| chain_data.recipient_program = Some(system))
        )
        .is_ok()
    );
}

#[test]
fn build__should_refuse_facts_that_were_not_asked_for() {
    for (payload, chain_data) in [
        (payload(|_| {}), super::chain_data()),
        (payload(|_| {}), networks::ChainData::Nothing),
        (send(), chain_data(|_| {})),
    ] {
        let fault = build(&payload, &chain_data).unwrap_err();
        assert_eq!(*fault.class(), Class::Bug, "{fault:?}");
    }
}

#[test]
fn outflow__should_name_the_mint_and_the_wallet() {
    use crate::networks::outflow::{ContentKind, Outflow};
    let solana = payload(|_| {}).outflow(Network::Solana);
    let Outflow { nature, spends, .. } = &solana;
    assert_eq!(*nature, ContentKind::Transfer);
    let [spend] = spends.as_slice() else {
        panic!("{spends:?}")
    };
    assert_eq!(spend.asset.to_string(), format!("solana/{MINT}"));
    assert_eq!(spend.amount, U256::from(1500));
    assert_eq!(spend.recipient, Some(to()));
    let sonic = wire::SolanaSendSplToken {
        chain_id: 0,
        ..wire()
    };
    let sonic = Payload::parse(&WireKind::SonicSvmSendSplToken(sonic)).unwrap();
    assert_eq!(sonic.chain_id(), Some(0));
    assert_eq!(sonic.outflow(Network::Solana), solana);
}

#[test]
fn most_fee__should_count_the_deposit_of_an_account_that_is_opened() {
    let fee = |chain_data: &networks::ChainData| {
        let unsigned = build(&payload(|_| {}), chain_data).unwrap();
        SOLANA.most_fee(&unsigned.bytes).unwrap()
    };
    assert_eq!(fee(&chain_data(|_| {})), U256::from(5000));
    let new = |chain_data: &mut TokenChainData| chain_data.recipient_account_owner = None;
    assert_eq!(fee(&chain_data(new)), U256::from(5000 + DEPOSIT));
    let new_2022 = chain_data(|chain_data| {
        chain_data.program = TOKEN_2022.to_string();
        chain_data.recipient_account_owner = None;
    });
    assert_eq!(fee(&new_2022), U256::from(5000 + DEPOSIT_2022));
}

#[test]
fn difference__should_be_named() {
    let built = |payload: &Payload, chain_data: &networks::ChainData| {
        build(payload, chain_data).unwrap().bytes
    };
    let usual = built(&payload(|_| {}), &chain_data(|_| {}));
    let difference = |shown: &[u8]| SOLANA.difference(&usual, shown);
    assert_eq!(difference(&usual), None);
    let other = || Pubkey::new_from_array([4; 32]).to_string();
    let elsewhere = chain_data(|chain_data| chain_data.recipient_account_owner = Some(other()));
    for (payload, chain_data, name) in [
        (payload(|wire| wire.to = other()), &elsewhere, "recipient"),
        (
            payload(|wire| wire.mint_address = other()),
            &chain_data(|_| {}),
            "token",
        ),
        (
            payload(|wire| wire.amount = "1501".into()),
            &chain_data(|_| {}),
            "amount",
        ),
        (
            payload(|_| {}),
            &chain_data(|chain_data| chain_data.program = TOKEN_2022.to_string()),
            "program",
        ),
        (
            payload(|_| {}),
            &chain_data(|chain_data| chain_data.decimals = 7),
            "data",
        ),
        (
            payload(|_| {}),
            &chain_data(|chain_data| chain_data.recipient_account_owner = None),
            "instructions",
        ),
    ] {
        assert_eq!(difference(&built(&payload, chain_data)), Some(name));
    }
    let native = SOLANA.build(&send(), &super::chain_data(), &public_key());
    assert_eq!(difference(&native.unwrap().bytes), Some("program"));
    assert_eq!(difference(&usual[1..]), None);
}

proptest! {
    /// What is built says what the payload says, and nothing else.
    #[test]
    fn transfer__should_be_read_back(
        to: [u8; 32], mint: [u8; 32], amount: u64, decimals: u8, opens: bool, newer: bool, hash: [u8; 32],
    ) {
        let (to, mint) = (Pubkey::new_from_array(to), Pubkey::new_from_array(mint));
        let program = if newer { TOKEN_2022 } else { TOKEN };
        let payload = payload(|wire| {
            (wire.to, wire.mint_address) = (to.to_string(), mint.to_string());
            wire.amount = amount.to_string();
        });
        let chain_data = networks::ChainData::Solana(ChainData {
            recent_blockhash: Hash::new_from_array(hash).to_string(),
            token: Some(Box::new(TokenChainData {
                program: program.to_string(),
                decimals,
                recipient_account_owner: (!opens).then(|| to.to_string()),
                ..known()
            })),
            compute: None,
        });
        let unsigned = build(&payload, &chain_data).unwrap();
        prop_assert_eq!(build(&payload, &chain_data).unwrap(), unsigned.clone());
        let transaction = WireTransaction::parse(&unsigned.bytes).unwrap();
        let message = transaction.message();
        let from = keys().0;
        prop_assert_eq!(message.header().num_required_signatures, 1);
        prop_assert_eq!(message.static_account_keys()[0], from);
        prop_assert_eq!(message.recent_blockhash().to_bytes(), hash);
        prop_assert_eq!(&unsigned.signing[0].message[..], transaction.message_bytes());
        let named = |instruction: &CompiledInstruction, place: usize| {
            effect::account(message, instruction.accounts[place]).unwrap().named().unwrap()
        };
        let mut moved = acts::acts(message, &from).moves;
        // The account that is opened first.
        moved.retain(|one| one.token.is_some());
        let named_key = effect::AccountRef::Named;
        prop_assert_eq!(moved, [effect::Movement {
            authority: named_key(from),
            token: Some(effect::MovedToken::Of(named_key(mint))),
            to: named_key(associated_account(&to, &mint, &program)),
            amount,
        }]);
        let (last, rest) = message.instructions().split_last().unwrap();
        prop_assert_eq!(named(last, 0), associated_account(&from, &mint, &program));
        prop_assert_eq!(last.data.last(), Some(&decimals));
        prop_assert_eq!(rest.len(), usize::from(opens));
        for open in rest {
            prop_assert_eq!(&open.data, &[1]);
            prop_assert_eq!([0, 1, 2, 3, 5].map(|place| named(open, place)), [
                from, associated_account(&to, &mint, &program), to, mint, program,
            ]);
        }
        let signed = SOLANA
            .assemble(&payload, &unsigned, &[signature(&unsigned.signing[0].message)], &public_key())
            .unwrap()
            .unwrap();
        let bytes = STANDARD.decode(&signed.transaction).unwrap();
        let signed_transaction = WireTransaction::parse(&bytes).unwrap();
        prop_assert_eq!(signed_transaction.message(), message);
        prop_assert_eq!(bs58::encode(signed_transaction.id().unwrap()).into_string(), signed.tx_hash);
    }

    #[test]
    fn facts__should_never_panic(owner in 0..3_u8, data: Vec<u8>, length in prop::sample::select(vec![0_usize, 82, 165, 166, 170, 355, 400])) {
        let owner = [TOKEN, TOKEN_2022, Pubkey::default()][usize::from(owner)];
        let mut data = data;
        data.resize(length, 1);
        let account = account(&owner, data);
        let _ = queries().chain_data(&vec![account; 6]);
    }
}
