//! Samples of the rows of deposits, and what their keys say.

#![allow(non_snake_case)]

use covault_core::{
    deposit::{
        lifecycle::{OwnerNotice, Stage},
        transfer::{AddressOwner, BlockHeader, DepositAddress, Transfer, TransferIndex},
    },
    ids::{VaultId, WalletId},
};

use super::{super::rows::tests::check, *};

fn owner() -> AddressOwner {
    AddressOwner {
        token: TokenId::from_bytes([1; 16]),
        reference: "order-1".into(),
        wallet: Some((WalletId::from_bytes([2; 16]), VaultId::from_bytes([3; 16]))),
        since_ms: 4,
    }
}

fn owned() -> OwnedTransfer {
    OwnedTransfer {
        chain: FollowedChain::Evm(1),
        transfer: Transfer {
            tx: [5; 32],
            index: TransferIndex::Log(6),
            from: Account([7; 20]),
            to: Account([8; 20]),
            asset: Some(Account([9; 20])),
            amount: [10; 32],
        },
        is_send: false,
        owner: owner(),
    }
}

fn block() -> BlockRef {
    BlockRef {
        number: 11,
        hash: [12; 32],
    }
}

fn notice_row(delivery: NoticeDelivery) -> NoticeRow {
    NoticeRow {
        notice: TransferNotice {
            stage: Stage::Confirmed,
            transfer: owned(),
            block: block(),
            timestamp_ms: 13,
        },
        created_at_ms: 14,
        attempts: 15,
        first_tried_at_ms: Some(16),
        delivery,
    }
}

#[test]
fn rows_of_deposits__should_load_for_ever() {
    let cursor = CursorRow {
        head: block(),
        finalized: block(),
    };
    check("chain-cursor-v1", &cursor);
    check("rescan-v1", &RescanRow { next: 1, last: 2 });
    check("chain-restart-v1", &RestartRow { from: 4 });
    let counts = ReconciliationCounts {
        found: 27,
        missing: 28,
    };
    let reconciliation = ReconciliationRow {
        is_wanted: true,
        next: Some(vec![29]),
        round: counts,
        done: Some((30, counts)),
        restarts: 31,
        of_now: RoundOfNow {
            is_wanted: true,
            next: Some(vec![36]),
            doubts: [(Account([40; 20]), 37)].into(),
        },
    };
    check("reconciliation-v1", &reconciliation);
    let balance = BalanceRow {
        block: 32,
        balance: [33; 32],
        restarts: 34,
        missing: [35; 32],
        is_more: true,
        doubt: Some(DoubtfulBalance {
            block: 38,
            balance: [39; 32],
        }),
    };
    check("balance-check-v1", &balance);
    check("chain-start-v1", &ChainStartRow { since_ms: 3 });
    let header = BlockHeader {
        block: block(),
        parent: [17; 32],
        timestamp_ms: 18,
    };
    check("block-header-v1", &header);
    let watched = AddressOwner {
        reference: String::new(),
        wallet: None,
        ..owner()
    };
    let owners = vec![owner(), watched];
    check("deposit-address-v1", &DepositAddress { owners });
    let round = 19;
    for (name, state) in [
        (
            "seen",
            TransferState::Seen {
                block: block(),
                round,
            },
        ),
        (
            "confirmed",
            TransferState::Confirmed {
                block: block(),
                round,
            },
        ),
        (
            "finalized",
            TransferState::Finalized {
                block: block(),
                round,
            },
        ),
        ("reverted", TransferState::Reverted { round }),
    ] {
        let row = TransferRow {
            transfer: owned(),
            state,
            timestamp_ms: 20,
        };
        check(&format!("transfer-v1-{name}"), &row);
    }
    for (name, delivery) in [
        (
            "waiting",
            NoticeDelivery::Waiting {
                problem: "503".into(),
            },
        ),
        ("delivered", NoticeDelivery::Delivered { at_ms: 21 }),
        (
            "dead",
            NoticeDelivery::Dead {
                at_ms: 22,
                problem: "503".into(),
            },
        ),
    ] {
        check(&format!("transfer-notice-v1-{name}"), &notice_row(delivery));
    }
    for (name, row) in [
        ("next", NoticeAfterRow::Next(EventId([25; 16]))),
        ("over", NoticeAfterRow::Over),
    ] {
        check(&format!("notice-after-v1-{name}"), &row);
    }
    check("webhook-key-v1", &WebhookKeyRow { used_at_ms: 26 });
    let secret = WebhookSecretRow {
        secret: [23; 32],
        created_at_ms: 24,
    };
    assert!(!format!("{secret:?}").contains("23"), "{secret:?}");
    check("webhook-secret-v1", &secret);
}

#[test]
fn keys_of_deposits__should_say_what_they_are_of() {
    let open = open_transfer(&owned(), 7);
    assert_eq!(transfer_of_open(&open), Some(transfer(&owned())));
    assert!(
        open.bytes
            .starts_with(&open_transfers(FollowedChain::Evm(1)).bytes)
    );
    let index = transfer_index(&owned(), 7);
    assert_eq!(transfer_of_index(&index), Some(transfer(&owned())));
    let of = |number| transfers_from(FollowedChain::Evm(1), owned().account(), number);
    let (all, from) = of(7);
    assert!(index.bytes.starts_with(&all.bytes) && index.bytes >= from && index.bytes < of(8).1);
    let address = deposit_address(DepositNetwork::Evm, Account([5; 20]));
    assert_eq!(account_of_address(&address), Some(Account([5; 20])));
    assert!(
        address
            .bytes
            .starts_with(&deposit_addresses(DepositNetwork::Evm).bytes)
    );
    let tell = OwnerNotice {
        stage: Stage::Confirmed,
        block: block(),
        round: 0,
    };
    let id = EventId::of(&owned(), &tell);
    assert_eq!(event_of_notice(&notice(id)), Some(id));
    assert_eq!(event_of_age(&notice_age(7, id)), Some((7, id)));
    let token = owner().token;
    let due = notice_due(token, DepositNetwork::Evm, 25, id);
    assert_eq!(due_event(&due), Some((25, id)));
    // Earlier is first, and each network and token is for itself.
    assert!(due < notice_due(token, DepositNetwork::Evm, 26, EventId([0; 16])));
    let all = due_notices(token, DepositNetwork::Tron);
    assert!(!due.bytes.starts_with(&all.bytes));
    assert_eq!(webhook_public_key(&webhook_key(&[1; 32])), Some([1; 32]));
}
