//! What a backend must hold also where requests fail, replies are lost, effects come twice or late.
//!
//! The fixture's first door is the backend behind a [fault network](crate::testing::faults) (without latency), the second the
//! backend itself, for a last look.
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
//!         let faults = FaultConfig::default().errors(0.1).lost_replies(0.1).doubled(0.1).late(0.1);
//!         let network = FaultNetwork::new(faults, 7, &Clock::tokio()).unwrap();
//!         let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
//!         Fixture::new(network.client("client").store(store.clone())).with_other_door(store)
//!     });
//! }
//! ```
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::Fixture;
use crate::{
    entropy::Entropy,
    port::{Capability, Failure, FencingToken},
    queue::{Message, Queue, QueueExt, Receive},
    store::{Key, Precondition, PutOptions, Record, Scan, Store, StoreError, StoreExt, Version, Write},
};

/// Makes one named test of each case of the store's safety.
#[macro_export]
macro_rules! store_safety {
    ($make:expr) => {
        $crate::conformance_cases!(safety, $make;
            no_increment_is_lost_and_none_is_counted_twice,
            of_writers_with_one_version_one_wins_at_most,
            a_fence_is_never_lowered,
            a_batch_is_whole_or_not_there,
            a_version_is_given_once,
        );
    };
}

/// Makes one named test of each case of the queue's safety.
#[macro_export]
macro_rules! queue_safety {
    ($make:expr) => {
        $crate::conformance_cases!(safety, $make;
            what_was_accepted_is_handed_out_until_it_is_completed,
            what_was_completed_never_comes_back,
        );
    };
}

const STEPS: u64 = 400;
const KEY: Key<'static> = Key::new("safety", "r");

/// What came of a write: it was made, it was not, or nobody knows.
enum Came<T> {
    Made(T),
    NotMade,
    Unknown,
}

fn came<T, E: Failure>(result: Result<T, E>) -> Came<T> {
    match result {
        Ok(value) => Came::Made(value),
        Err(error) if error.may_have_been_applied() => Came::Unknown,
        Err(_) => Came::NotMade,
    }
}

async fn last_look(fixture: &Fixture<dyn Store>) -> Option<Record> {
    fixture.other().get(KEY).await.unwrap_or_else(|error| panic!("the backend itself failed: {error}"))
}

// Guarantee: store 8.
/// Three clients that read and compare-and-set in turns: the counter is what was answered, and at most what nobody knows more.
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
                match came(store.put(KEY, (number(&old) + 1).to_string().into(), when.into()).await) {
                    Came::Made(_) => made += 1,
                    Came::Unknown => unknown += 1,
                    Came::NotMade => {}
                }
            }
        }
    }
    let counted = number(&last_look(fixture).await);
    assert!((made..=made + unknown).contains(&counted), "{counted} counted, {made} made, {unknown} unknown");
    assert!(made > 0, "something was made");
}

// Guarantee: store 1.
/// Again and again, five clients write with one version: one of them at most is told that it won.
pub async fn of_writers_with_one_version_one_wins_at_most(fixture: &Fixture<dyn Store>) {
    for round in 0..STEPS / 5 {
        let when = match last_look(fixture).await {
            Some(record) => Precondition::Version(record.version),
            None => Precondition::Absent,
        };
        let mut winners = Vec::new();
        for client in 0..5 {
            let value = format!("{round}-{client}");
            if let Came::Made(version) = came(fixture.port().put(KEY, value.clone().into(), when.into()).await) {
                winners.push((value, version));
            }
        }
        assert!(winners.len() <= 1, "{winners:?}");
        if let [(value, version)] = &winners[..] {
            let record = last_look(fixture).await;
            assert!(
                record.is_some_and(|r| r.value == value.as_bytes() && r.version == *version),
                "the winner's is there"
            );
        }
    }
}

// Guarantee: store 6.
/// Writes under random tokens: once one was answered, no lower one goes through.
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
/// Two rows that are only ever written together are equal whenever anybody looks.
pub async fn a_batch_is_whole_or_not_there(fixture: &Fixture<dyn Store>) {
    if !fixture.port().capabilities().has(Capability::AtomicBatch) {
        return;
    }
    for step in 0..STEPS {
        let put = |row: &str| Write::put(row, step.to_string(), Precondition::Any);
        // Made or not: that is told by the rows.
        let _ = fixture.port().batch("safety", vec![put("a"), put("b")]).await;
        let rows = fixture.other().scan(&Scan::partition("safety")).await;
        let rows = rows.unwrap_or_else(|error| panic!("the backend itself failed: {error}")).rows;
        assert!(matches!(&rows[..], []) || matches!(&rows[..], [a, b] if a.value == b.value), "{rows:?}");
    }
}

// Guarantee: store 2.
/// Over puts and deletes, no answer gives a version that another gave.
pub async fn a_version_is_given_once(fixture: &Fixture<dyn Store>) {
    let entropy = Entropy::from_seed(5);
    let mut given: BTreeSet<Version> = BTreeSet::new();
    for _ in 0..STEPS {
        if entropy.up_to(3) == 0 {
            // Gone or not: either is good.
            let _ = fixture.port().delete(KEY, Precondition::Any.into()).await;
        } else if let Ok(version) = fixture.port().put(KEY, "x".into(), PutOptions::new()).await {
            assert!(given.insert(version), "{version} was given before");
        }
    }
}

/// For how long a message is hidden in these cases. Where time is real it passes in the end.
const HIDDEN: Duration = Duration::from_millis(300);

/// Sends under a de-duplication id, again until it is answered; gives the bodies.
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
/// Everything whose sending was answered is received and completed in the end, through all that goes wrong.
pub async fn what_was_accepted_is_handed_out_until_it_is_completed(fixture: &Fixture<dyn Queue>) {
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
                    // Known to be completed, or perhaps: it comes back if it was not.
                    if !matches!(came(fixture.port().complete(&delivery.receipt).await), Came::NotMade) {
                        done.insert(String::from_utf8_lossy(&delivery.body).into_owned());
                    }
                }
            }
            Err(_) => {}
        }
    }
    assert_eq!(sent.difference(&done).collect::<Vec<_>>(), Vec::<&String>::new(), "accepted, and never handed out");
    assert!(sent.len() > 30, "most were accepted");
}

// Guarantee: queue 1.
/// Once its completion was answered, no message is handed out again.
pub async fn what_was_completed_never_comes_back(fixture: &Fixture<dyn Queue>) {
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
                "{body} was completed, and is delivered for the {}. time",
                delivery.deliveries
            );
            if fixture.port().complete(&delivery.receipt).await.is_ok() {
                completed.insert(body, delivery.deliveries);
            }
        }
    }
    assert!(completed.len() > 20, "most were completed");
}
