//! The safety of a backend while requests fail, replies are lost, and effects come twice or late.
//!
//! The fixture's first handle is the backend behind a [fault network](crate::testing::faults)
//! without latency; the second is the backend itself, for the final check.
//!
//! ```
//! mod my_store {
//!     # use std::sync::Arc;
//!     use steadfast::{
//!         store::{InMemoryStore, Store},
//!         testing::{conformance::Fixture, faults::{FaultConfig, FaultNetwork}},
//!         time::Clock,
//!     };
//!
//!     steadfast::store_safety!(async || {
//!         let faults = FaultConfig::default().errors(0.1).lost_replies(0.1);
//!         let faults = faults.doubled(0.1).late(0.1);
//!         let network = FaultNetwork::new(faults, 7, &Clock::tokio()).unwrap();
//!         let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
//!         Fixture::new(network.client("client").store(store.clone())).with_second_handle(store)
//!     });
//! }
//! ```
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

#[doc(hidden)]
pub use super::safety_appends::*;
use super::{Fixture, case::suite};
use crate::{
    entropy::Entropy,
    port::{Capability, Failure, FencingToken},
    queue::{Message, Queue, QueueExt, Receive, Settle},
    store::{Key, Precondition, PutOptions, Record, Scan, Store, StoreError, StoreExt, Version, Write},
};

suite! {
    $
    /// Defines one named test for each case of the store's safety.
    store_safety;
    /// Returns the cases of the store's safety.
    safety::store_cases -> dyn Store;
    no_increment_is_lost_and_none_is_counted_twice,
    of_writers_with_one_version_one_wins_at_most,
    a_fence_is_never_lowered,
    a_batch_is_whole_or_not_there,
    a_version_is_given_once,
    of_appends_behind_one_number_one_wins_at_most,
    numbers_are_dense_and_no_deleted_row_comes_back,
    a_check_holds_when_its_batch_takes_effect,
}

suite! {
    $
    /// Defines one named test for each case of the queue's safety.
    queue_safety;
    /// Returns the cases of the queue's safety.
    safety::queue_cases -> dyn Queue;
    an_accepted_message_is_delivered_until_it_is_completed,
    a_completed_message_is_never_delivered_again,
    a_forwarded_message_is_in_one_queue,
}

pub(super) const STEPS: u64 = 400;
const KEY: Key<'static> = Key::new("safety", "r");

/// The outcome of a write.
pub(super) enum WriteOutcome<T> {
    Made(T),
    NotMade,
    Unknown,
}

pub(super) fn outcome_of<T, E: Failure>(result: Result<T, E>) -> WriteOutcome<T> {
    match result {
        Ok(value) => WriteOutcome::Made(value),
        Err(error) if error.may_have_been_applied() => WriteOutcome::Unknown,
        Err(_) => WriteOutcome::NotMade,
    }
}

async fn final_record(fixture: &Fixture<dyn Store>) -> Option<Record> {
    fixture.other().get(KEY).await.unwrap_or_else(|error| panic!("the backend itself failed: {error}"))
}

// Guarantee: store 8.
/// Three clients read and compare-and-set in turns: the counter is at least the number of confirmed
/// increments, and exceeds it by at most the number of unknown ones.
#[doc(hidden)]
pub async fn no_increment_is_lost_and_none_is_counted_twice(fixture: &Fixture<dyn Store>) {
    let (store, entropy) = (fixture.port(), Entropy::from_seed(1));
    let number = |record: &Option<Record>| -> u64 {
        let text = record.as_ref().map(|r| String::from_utf8_lossy(&r.value).into_owned());
        text.map_or(0, |text| text.parse().unwrap_or_else(|e| panic!("{text}: {e}")))
    };
    let mut read: [Option<Option<Record>>; 3] = Default::default();
    let (mut made, mut unknown) = (0, 0);
    for _ in 0..STEPS {
        let client = &mut read[entropy.up_to(2) as usize];
        match client.take() {
            None => *client = store.get(KEY).await.ok(),
            Some(old) => {
                let when = old.as_ref().map_or(Precondition::Absent, |r| Precondition::Version(r.version));
                match outcome_of(store.put(KEY, (number(&old) + 1).to_string().into(), when.into()).await) {
                    WriteOutcome::Made(_) => made += 1,
                    WriteOutcome::Unknown => unknown += 1,
                    WriteOutcome::NotMade => {}
                }
            }
        }
    }
    let counted = number(&final_record(fixture).await);
    assert!((made..=made + unknown).contains(&counted), "{counted} counted, {made} made, {unknown} unknown");
    assert!(made > 0, "at least one write was confirmed");
}

// Guarantee: store 1.
/// Five clients write with the same version: at most one receives a success, in each of many
/// rounds.
#[doc(hidden)]
pub async fn of_writers_with_one_version_one_wins_at_most(fixture: &Fixture<dyn Store>) {
    for round in 0..STEPS / 5 {
        let when = match final_record(fixture).await {
            Some(record) => Precondition::Version(record.version),
            None => Precondition::Absent,
        };
        let mut winners = Vec::new();
        for client in 0..5 {
            let value = format!("{round}-{client}");
            if let WriteOutcome::Made(version) =
                outcome_of(fixture.port().put(KEY, value.clone().into(), when.into()).await)
            {
                winners.push((value, version));
            }
        }
        assert!(winners.len() <= 1, "{winners:?}");
        if let [(value, version)] = &winners[..] {
            let record = final_record(fixture).await;
            assert!(
                record.is_some_and(|r| r.value == value.as_bytes() && r.version == *version),
                "the winner's record is stored"
            );
        }
    }
}

// Guarantee: store 6.
/// Writes under random tokens: after a success, no lower token succeeds.
#[doc(hidden)]
pub async fn a_fence_is_never_lowered(fixture: &Fixture<dyn Store>) {
    if !fixture.port().capabilities().has(Capability::Fencing) {
        return;
    }
    let entropy = Entropy::from_seed(3);
    let mut highest = 0;
    for step in 0..STEPS {
        let token = step / 4 + entropy.up_to(20);
        let written = fixture.port().put_fenced(KEY, token.to_string(), FencingToken::new(token)).await;
        match written {
            Ok(_) => {
                assert!(token >= highest, "{token} after {highest}");
                highest = token;
            }
            Err(StoreError::Fenced { highest: seen, .. }) => assert!(seen.as_u64() > token),
            Err(_) => {}
        }
    }
    let late = fixture.other().put_fenced(KEY, "late", FencingToken::new(highest.saturating_sub(1))).await;
    assert!(late.is_err_and(|error| error.is_fenced()));
}

// Guarantee: store 4.
/// Two rows that are always written together are equal at every read.
#[doc(hidden)]
pub async fn a_batch_is_whole_or_not_there(fixture: &Fixture<dyn Store>) {
    if !fixture.port().capabilities().has(Capability::AtomicBatch) {
        return;
    }
    for step in 0..STEPS {
        let put = |row: &str| Write::put(row, step.to_string(), Precondition::Any);
        // The rows show whether the batch was applied.
        let _ = fixture.port().batch("safety", vec![put("a"), put("b")]).await;
        let rows = fixture.other().scan(&Scan::partition("safety")).await;
        let rows = rows.unwrap_or_else(|error| panic!("the backend itself failed: {error}")).rows;
        assert!(matches!(&rows[..], []) || matches!(&rows[..], [a, b] if a.value == b.value), "{rows:?}");
    }
}

// Guarantee: store 2.
/// No two writes return the same version, over puts and deletes.
#[doc(hidden)]
pub async fn a_version_is_given_once(fixture: &Fixture<dyn Store>) {
    let entropy = Entropy::from_seed(5);
    let mut given: BTreeSet<Version> = BTreeSet::new();
    for _ in 0..STEPS {
        if entropy.up_to(3) == 0 {
            // Both outcomes are fine.
            let _ = fixture.port().delete(KEY, Precondition::Any.into()).await;
        } else if let Ok(version) = fixture.port().put(KEY, "x".into(), PutOptions::new()).await {
            assert!(given.insert(version), "{version} was given before");
        }
    }
}

/// Visibility time-out in these cases; short, for backends in real time.
const HIDDEN: Duration = Duration::from_millis(300);

/// Sends messages with de-duplication ids, each until a send succeeds, and returns their bodies.
async fn send_all(queue: &dyn Queue, messages: u64) -> BTreeSet<String> {
    let mut sent = BTreeSet::new();
    for i in 0..messages {
        let body = i.to_string();
        for _ in 0..100 {
            let message = Message::new(body.clone()).deduplicate(body.clone());
            if queue.send_one(message).await.is_ok() {
                sent.insert(body);
                break;
            }
        }
    }
    sent
}

// Guarantee: queue 1.
/// Every accepted message is received and completed in the end, despite the faults.
#[doc(hidden)]
pub async fn an_accepted_message_is_delivered_until_it_is_completed(fixture: &Fixture<dyn Queue>) {
    if !fixture.port().capabilities().has(Capability::Deduplication) {
        return;
    }
    let sent = send_all(fixture.port(), 60).await;
    let mut done = BTreeSet::new();
    for _ in 0..400 {
        match fixture.port().receive(Receive::new(5, HIDDEN)).await {
            Ok(taken) if taken.is_empty() => {
                fixture.pass(HIDDEN * 2).await;
                if fixture.other().depth().await.is_ok_and(|depth| depth.total() == 0) {
                    break;
                }
            }
            Ok(taken) => {
                for delivery in taken {
                    // Completed, or unknown: an uncompleted message is delivered again.
                    if !matches!(outcome_of(fixture.port().complete(&delivery.receipt).await), WriteOutcome::NotMade) {
                        done.insert(String::from_utf8_lossy(&delivery.body).into_owned());
                    }
                }
            }
            Err(_) => {}
        }
    }
    assert_eq!(sent.difference(&done).collect::<Vec<_>>(), Vec::<&String>::new(), "accepted, and never delivered");
    assert!(sent.len() > 30, "most were accepted");
}

// Guarantee: queue 1.
/// After a confirmed completion no message is delivered again.
#[doc(hidden)]
pub async fn a_completed_message_is_never_delivered_again(fixture: &Fixture<dyn Queue>) {
    if !fixture.port().capabilities().has(Capability::Deduplication) {
        return;
    }
    send_all(fixture.port(), 60).await;
    let mut completed: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..400 {
        let Ok(taken) = fixture.port().receive(Receive::new(5, HIDDEN)).await else { continue };
        if taken.is_empty() {
            fixture.pass(HIDDEN * 2).await;
            if fixture.other().depth().await.is_ok_and(|depth| depth.total() == 0) {
                break;
            }
        }
        for delivery in taken {
            let body = String::from_utf8_lossy(&delivery.body).into_owned();
            assert!(
                !completed.contains_key(&body),
                "{body} was completed, and then delivered (delivery {})",
                delivery.deliveries
            );
            if fixture.port().complete(&delivery.receipt).await.is_ok() {
                completed.insert(body, delivery.deliveries);
            }
        }
    }
    assert!(completed.len() > 20, "most were completed");
}

// Guarantee: queue 12, 13.
/// Each message that is forwarded to another queue, with its body, is in exactly one of the two
/// queues, whichever requests and replies are lost, late or doubled.
#[doc(hidden)]
pub async fn a_forwarded_message_is_in_one_queue(fixture: &Fixture<dyn Queue>) {
    let can = fixture.port().capabilities();
    if !can.has(Capability::Deduplication) || !can.has(Capability::Forward) {
        return;
    }
    let Some(target) = fixture.neighbour().or_else(|| fixture.other().dead_letters()) else { return };
    let address = target.address().unwrap_or_else(|| panic!("the fixture needs a neighbour with an address"));
    let sent = send_all(fixture.port(), 60).await;
    for _ in 0..400 {
        let Ok(taken) = fixture.port().receive(Receive::new(5, HIDDEN)).await else { continue };
        if taken.is_empty() {
            fixture.pass(HIDDEN * 2).await;
            if fixture.other().depth().await.is_ok_and(|depth| depth.total() == 0) {
                break;
            }
        }
        let forward = |body| Settle::forward([(address.clone(), Message::new(body))]);
        let hows = taken.into_iter().map(|taken| (taken.receipt, forward(taken.body)));
        // Both queues show whether it was applied.
        let _ = fixture.port().settle(hows.collect()).await;
    }
    fixture.pass(HIDDEN * 2).await;
    let mut places: BTreeMap<String, u32> = BTreeMap::new();
    for queue in [fixture.other(), &*target] {
        let peeked = queue.peek(1000).await.unwrap_or_else(|error| panic!("the backend itself failed: {error}"));
        for message in peeked {
            *places.entry(String::from_utf8_lossy(&message.body).into_owned()).or_default() += 1;
        }
    }
    let wrong: Vec<_> = places.iter().filter(|(_, copies)| **copies != 1).collect();
    assert!(wrong.is_empty(), "in more than one place: {wrong:?}");
    let lost: Vec<_> = sent.iter().filter(|body| !places.contains_key(*body)).collect();
    assert!(lost.is_empty(), "accepted, and in neither queue: {lost:?}");
    assert!(sent.len() > 30, "most were accepted");
}
