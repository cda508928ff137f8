//! Whether accounts have what is to be sent.

use std::collections::BTreeMap;

use stellar_xdr::{
    AccountEntry, AccountEntryExt, AccountEntryExtensionV1, AccountEntryExtensionV1Ext,
    AccountEntryExtensionV2, AccountEntryExtensionV2Ext, LedgerEntryData, Liabilities, String32,
    Thresholds, TrustLineEntry, TrustLineEntryExt, TrustLineEntryV1, TrustLineEntryV1Ext,
};

use super::{
    ledger::{LedgerAccount, account_key, read_account, trust_line_key},
    *,
};
use crate::fault::ExecuteCode;

const LUMEN: i64 = 10_000_000;
const FEE: u32 = 250;

fn base64(value: &impl stellar_xdr::WriteXdr) -> String {
    STANDARD.encode(value.to_xdr(Limits::none()).unwrap())
}

/// The sender, with entries of its own, and for others, by others; its offers sell so much.
fn account(balance: i64, entries: [u32; 3], selling: i64) -> LedgerAccount {
    let [num_sub_entries, num_sponsoring, num_sponsored] = entries;
    let counts = AccountEntryExtensionV2 {
        num_sponsored,
        num_sponsoring,
        signer_sponsoring_i_ds: Default::default(),
        ext: AccountEntryExtensionV2Ext::V0,
    };
    let more = AccountEntryExtensionV1 {
        liabilities: Liabilities { buying: 0, selling },
        ext: match (num_sponsoring, num_sponsored) {
            (0, 0) => AccountEntryExtensionV1Ext::V0,
            _ => AccountEntryExtensionV1Ext::V2(counts),
        },
    };
    let account_id = parse_account(&from()).unwrap();
    let key = account_key(&account_id).unwrap();
    let entry = LedgerEntryData::Account(AccountEntry {
        account_id,
        balance,
        seq_num: SequenceNumber(9),
        num_sub_entries,
        inflation_dest: None,
        flags: 0,
        home_domain: String32::default(),
        thresholds: Thresholds([1, 0, 0, 0]),
        signers: Default::default(),
        ext: AccountEntryExt::V1(more),
    });
    read_account(&key, &base64(&entry)).unwrap()
}

/// The trust line of an account for USDC.
fn line(owner: &str, [balance, limit, selling, buying]: [i64; 4], flags: u32) -> (String, String) {
    let owner = parse_account(owner).unwrap();
    let asset = IssuedAsset::new("USDC", ISSUER).unwrap();
    let XdrAsset::CreditAlphanum4(code) = asset.to_asset() else {
        unreachable!()
    };
    let entry = LedgerEntryData::Trustline(TrustLineEntry {
        account_id: owner.clone(),
        asset: stellar_xdr::TrustLineAsset::CreditAlphanum4(code),
        balance,
        limit,
        flags,
        ext: TrustLineEntryExt::V1(TrustLineEntryV1 {
            liabilities: Liabilities { buying, selling },
            ext: TrustLineEntryV1Ext::V0,
        }),
    });
    (trust_line_key(&owner, &asset).unwrap(), base64(&entry))
}

fn queries(destination: Option<&str>, moves: Moves) -> Queries {
    Queries {
        from: from(),
        destination: destination.map(str::to_owned),
        level: Default::default(),
        moves,
    }
}

/// The refusal and its code, where a ledger with these trust lines has one.
fn refusal(
    queries: &Queries,
    account: &LedgerAccount,
    lines: &[(String, String)],
) -> Option<(String, ExecuteCode)> {
    let keys = queries.trust_lines().unwrap();
    let lines: BTreeMap<_, _> = lines.iter().cloned().collect();
    let found = |key: &str| lines.get(key).map(String::as_str);
    let checked = queries.check_means(account, FEE, &keys, found).unwrap();
    let fault = checked.err()?;
    Some((fault.message().to_owned(), fault.execute_code()))
}

#[test]
fn lumens__should_be_there_beside_reserve_offers_and_fee() {
    let pay = |amount: i64| queries(Some(TO), Moves::Lumens(amount.unsigned_abs()));
    let fee = i64::from(FEE);
    // What it keeps: half a lumen for each of its entries, of which it has two anyway.
    for (entries, selling, kept) in [
        ([0, 0, 0], 0, LUMEN),
        ([3, 0, 0], 0, 5 * LUMEN / 2),
        ([3, 2, 0], 0, 7 * LUMEN / 2),
        ([3, 2, 4], 0, 3 * LUMEN / 2),
        ([1, 0, 0], 7, 3 * LUMEN / 2 + 7),
    ] {
        let account = account(20 * LUMEN, entries, selling);
        let most = 20 * LUMEN - kept - fee;
        assert_eq!(refusal(&pay(most), &account, &[]), None);
        let (reason, code) = refusal(&pay(most + 1), &account, &[]).unwrap();
        assert_eq!(code, ExecuteCode::InsufficientFunds);
        let expected = format!(
            "value: is {} stroops, and the wallet can send {most}: it has 200000000, keeps {kept} as",
            most + 1
        );
        assert!(reason.starts_with(&expected), "{reason}");
        assert!(reason.ends_with("pays up to 250 as fee"), "{reason}");
    }
    // A node that names a price which nobody believes does not end the request by that.
    let account = account(20 * LUMEN, [0, 0, 0], 0);
    let most = pay(19 * LUMEN - 1_000_000);
    let keys = most.trust_lines().unwrap();
    let checked = most.check_means(&account, u32::MAX, &keys, |_| None);
    assert_eq!(checked, Some(Ok(())));
    // One that keeps more than it has can send nothing, and what it sends to itself stays.
    let poor = LedgerAccount {
        spendable: 0,
        ..account
    };
    assert!(refusal(&pay(1), &poor, &[]).is_some());
    let to_itself = queries(Some(&from()), Moves::Lumens(u64::MAX));
    assert_eq!(refusal(&to_itself, &poor, &[]), None);
}

#[test]
fn assets__should_be_there_and_find_room() {
    let account = account(20 * LUMEN, [1, 0, 0], 0);
    let usdc = format!("USDC:{ISSUER}");
    let pay = |amount: u64, to: &str| {
        let (asset, to) = (usdc.clone(), to.to_owned());
        queries(None, Moves::Asset { asset, amount, to })
    };
    let ours = |balance, selling| line(&from(), [balance, i64::MAX, selling, 0], 1);
    let theirs = |limit| line(TO, [10, limit, 0, 4], 1);
    let refused = |amount, lines: &[(String, String)], begins: &str, code| {
        let (reason, found) = refusal(&pay(amount, TO), &account, lines).unwrap();
        assert!(reason.starts_with(begins), "{reason}");
        assert_eq!(found, code, "{reason}");
    };
    let funds = ExecuteCode::InsufficientFunds;
    assert_eq!(
        refusal(&pay(93, TO), &account, &[ours(100, 7), theirs(107)]),
        None
    );
    let more = "amount: is 94 units of 10^-7, and the wallet can send 93: it has 100";
    refused(94, &[ours(100, 7), theirs(1_000)], more, funds);
    refused(
        1,
        &[theirs(1_000)],
        "assetCode: is an asset for which the wallet",
        funds,
    );
    let frozen = line(&from(), [100, i64::MAX, 0, 0], 0);
    refused(
        1,
        &[frozen, theirs(1_000)],
        "assetIssuer: has not authorized",
        funds,
    );
    let other = ExecuteCode::Unspecified;
    refused(
        1,
        &[ours(100, 0)],
        "to: has no trust line for the asset",
        other,
    );
    refused(
        93,
        &[ours(100, 0), theirs(106)],
        "to: has room for 92 units",
        other,
    );
    let barred = line(TO, [0, i64::MAX, 0, 0], 2);
    refused(1, &[ours(100, 0), barred], "to: is not authorized", other);
    // The issuer takes any amount, and makes any; nobody needs room for what it has.
    assert_eq!(refusal(&pay(100, ISSUER), &account, &[ours(100, 0)]), None);
    assert!(refusal(&pay(101, ISSUER), &account, &[ours(100, 0)]).is_some());
    assert_eq!(refusal(&pay(100, &from()), &account, &[ours(100, 0)]), None);
    let own = Moves::Asset {
        asset: format!("USDC:{}", from()),
        amount: u64::MAX,
        to: ISSUER.into(),
    };
    let keys = queries(None, own.clone()).trust_lines().unwrap();
    assert_eq!(keys.iter().count(), 1, "that of the recipient alone");
    let (reason, _) = refusal(&queries(None, own), &account, &[]).unwrap();
    assert!(reason.starts_with("to: has no trust line"), "{reason}");
    // An entry that makes no sense is no answer.
    let keys = pay(1, TO).trust_lines().unwrap();
    let checked = pay(1, TO).check_means(&account, FEE, &keys, |_| Some("AAAA"));
    assert_eq!(checked, None);
}

#[test]
fn trust_lines__should_be_made_only_where_their_reserve_is_there() {
    let asset = format!("USDC:{ISSUER}");
    let trust = queries(None, Moves::Trust { asset });
    let needed = 2 * LUMEN - LUMEN / 2 + i64::from(FEE);
    assert_eq!(refusal(&trust, &account(needed, [0; 3], 0), &[]), None);
    let poor = account(needed - 1, [0; 3], 0);
    let (reason, code) = refusal(&trust, &poor, &[]).unwrap();
    assert!(
        reason.starts_with("from: can spend 4999999 stroops"),
        "{reason}"
    );
    assert_eq!(code, ExecuteCode::InsufficientFunds);
    // One that is there takes nothing more.
    let there = line(&from(), [0, 1, 0, 0], 1);
    assert_eq!(refusal(&trust, &poor, &[there]), None);
}
