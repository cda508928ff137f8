//! What every bus must do. A new bus runs [`run`] in its own tests.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use covault_core::order::NodeId;
use tokio::time::timeout;

use super::{Bus, BusAddress, BusError, MAX_MESSAGE, Subscription};

const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the suite; `connect` makes a fresh client of one and the same bus.
pub async fn run<B: Bus + 'static>(connect: impl Fn() -> Arc<B>) {
    delivers_in_order_to_one_inbox(&connect).await;
    delivers_announcements_to_all_who_asked(&connect).await;
    starts_at_the_present(&connect).await;
    carries_any_bytes_of_any_size(&connect).await;
    takes_many_senders(&connect).await;
    forgets_a_dropped_subscription(&connect).await;
}

async fn next(subscription: &mut Subscription) -> Vec<u8> {
    timeout(PATIENCE, subscription.next())
        .await
        .expect("a message in time")
        .expect("an open bus")
}

async fn silent(subscription: &mut Subscription) {
    assert!(
        timeout(Duration::from_millis(200), subscription.next())
            .await
            .is_err()
    );
}

async fn delivers_in_order_to_one_inbox<B: Bus>(connect: &impl Fn() -> Arc<B>) {
    let (sender, receiver) = (connect(), connect());
    let (alice, bob) = (NodeId([1; 32]), NodeId([2; 32]));
    let mut for_alice = receiver.subscribe(alice, false).await.unwrap();
    let mut for_bob = receiver.subscribe(bob, false).await.unwrap();
    for number in 0..1000_u32 {
        sender
            .publish(BusAddress::Inbox(alice), number.to_be_bytes().to_vec())
            .unwrap();
    }
    for number in 0..1000_u32 {
        assert_eq!(next(&mut for_alice).await, number.to_be_bytes());
    }
    silent(&mut for_alice).await;
    silent(&mut for_bob).await;
    assert!(sender.reachable());
}

async fn delivers_announcements_to_all_who_asked<B: Bus>(connect: &impl Fn() -> Arc<B>) {
    let bus = connect();
    let mut first = bus.subscribe(NodeId([3; 32]), true).await.unwrap();
    let mut second = connect().subscribe(NodeId([4; 32]), true).await.unwrap();
    let mut deaf = bus.subscribe(NodeId([5; 32]), false).await.unwrap();
    bus.publish(BusAddress::Announcements, b"hello".to_vec())
        .unwrap();
    assert_eq!(next(&mut first).await, b"hello");
    assert_eq!(next(&mut second).await, b"hello");
    silent(&mut deaf).await;
    // Inbox and announcements arrive through one subscription.
    bus.publish(BusAddress::Inbox(NodeId([3; 32])), b"you".to_vec())
        .unwrap();
    assert_eq!(next(&mut first).await, b"you");
}

async fn starts_at_the_present<B: Bus>(connect: &impl Fn() -> Arc<B>) {
    let bus = connect();
    let me = NodeId([6; 32]);
    bus.publish(BusAddress::Inbox(me), b"old".to_vec()).unwrap();
    // A message through the same queue shows that the first has been sent.
    let mut other = bus.subscribe(NodeId([7; 32]), false).await.unwrap();
    bus.publish(BusAddress::Inbox(NodeId([7; 32])), b"marker".to_vec())
        .unwrap();
    assert_eq!(next(&mut other).await, b"marker");
    let mut late = bus.subscribe(me, false).await.unwrap();
    bus.publish(BusAddress::Inbox(me), b"new".to_vec()).unwrap();
    assert_eq!(next(&mut late).await, b"new");
}

async fn carries_any_bytes_of_any_size<B: Bus>(connect: &impl Fn() -> Arc<B>) {
    let bus = connect();
    let me = NodeId([8; 32]);
    let mut inbox = bus.subscribe(me, false).await.unwrap();
    let large: Vec<u8> = (0..1_000_003_u32).map(|at| (at % 251) as u8).collect();
    for message in [
        Vec::new(),
        vec![0],
        vec![0xff, b'\r', b'\n', 0, b'$'],
        large,
    ] {
        bus.publish(BusAddress::Inbox(me), message.clone()).unwrap();
        assert!(next(&mut inbox).await == message);
    }
    assert!(matches!(
        bus.publish(BusAddress::Inbox(me), vec![0; MAX_MESSAGE + 1]),
        Err(BusError::Refused(_))
    ));
}

async fn takes_many_senders<B: Bus + 'static>(connect: &impl Fn() -> Arc<B>) {
    const EACH: u32 = 1000;
    let me = NodeId([9; 32]);
    let mut inbox = connect().subscribe(me, false).await.unwrap();
    for sender in 0..4_u8 {
        let bus = connect();
        tokio::spawn(async move {
            for number in 0..EACH {
                let message = [&[sender][..], &number.to_be_bytes(), &[0; 200]].concat();
                bus.publish(BusAddress::Inbox(me), message).unwrap();
            }
            // Let the queue drain before the client goes away.
            tokio::time::sleep(Duration::from_secs(5)).await;
        });
    }
    let mut expected = BTreeMap::from([(0_u8, 0_u32), (1, 0), (2, 0), (3, 0)]);
    for _ in 0..4 * EACH {
        let message = next(&mut inbox).await;
        let expected = expected.get_mut(&message[0]).unwrap();
        assert_eq!(message[1..5], expected.to_be_bytes());
        *expected += 1;
    }
}

async fn forgets_a_dropped_subscription<B: Bus>(connect: &impl Fn() -> Arc<B>) {
    let bus = connect();
    let me = NodeId([10; 32]);
    drop(bus.subscribe(me, true).await.unwrap());
    bus.publish(BusAddress::Inbox(me), b"nobody".to_vec())
        .unwrap();
    let mut again = bus.subscribe(me, true).await.unwrap();
    bus.publish(BusAddress::Announcements, b"somebody".to_vec())
        .unwrap();
    loop {
        // A bus that stores may still hand over what nobody read.
        match next(&mut again).await {
            message if message == b"somebody" => return,
            message => assert_eq!(message, b"nobody"),
        }
    }
}
