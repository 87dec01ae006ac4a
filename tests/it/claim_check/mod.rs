//! Claim checks: large bodies in a store.
mod crashes;
mod slow;

use std::{cell::RefCell, sync::Arc, time::Duration};

use steadfast::{
    claim_check::{ClaimCheck, ClaimCheckConfig},
    entropy::Entropy,
    queue::{InMemoryQueue, Message, PartitionedQueue, Queue, QueueExt, Receive, Settle},
    queue_listener::{QueueListener, Work},
    store::{InMemoryStore, Key, Scan, Store, StoreExt},
    time::Clock,
};

const S: fn(u64) -> Duration = Duration::from_secs;

struct World {
    clock: Clock,
    time: steadfast::time::ManualClock,
    plain: Arc<InMemoryQueue>,
    store: Arc<InMemoryStore>,
    queue: Arc<ClaimCheck>,
}

impl World {
    fn new(config: ClaimCheckConfig) -> Self {
        let (clock, time) = Clock::manual();
        let plain = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let queue =
            ClaimCheck::builder(plain.clone(), store.clone(), config).entropy(&Entropy::from_seed(1)).build().unwrap();
        Self { clock, time, plain, store, queue: Arc::new(queue) }
    }

    fn stored(&self) -> Vec<(String, usize)> {
        let rows = self.time.block_on(self.store.scan_all(Scan::partition("claim-check"))).unwrap();
        rows.into_iter().map(|row| (row.row, row.value.len())).collect()
    }
}

fn noise(n: usize) -> Vec<u8> {
    let entropy = Entropy::from_seed(5);
    (0..n).map(|_| entropy.next_u64() as u8).collect()
}

// Guarantee: claim_check 2.
#[test]
fn a_large_body_is_stored_and_removed_after_completion() {
    let world = World::new(ClaimCheckConfig::default().threshold(1000));
    let bodies = [vec![7; 1000], vec![7; 1001], noise(5000)];
    let messages = bodies.iter().map(|body| Message::new(body.clone()).header("kind", "scan")).collect();
    world.time.block_on(world.queue.send(messages)).unwrap();
    let lengths: Vec<_> = world.stored().into_iter().map(|(_, length)| length).collect();
    assert_eq!(lengths.len(), 2, "at the threshold a body stays");
    assert!(lengths.contains(&5000) && lengths.iter().any(|n| *n < 100), "compressed where that shrinks: {lengths:?}");
    let taken = world.time.block_on(world.queue.receive(Receive::new(10, S(30)))).unwrap();
    assert_eq!(taken.iter().map(|taken| &taken.body[..]).collect::<Vec<_>>(), bodies);
    assert!(taken.iter().all(|taken| taken.headers.len() == 1), "the claim is not the receiver's business");
    world.time.block_on(world.queue.extend(&taken[2].receipt, S(60))).unwrap();
    let settlements = taken.into_iter().map(|taken| (taken.receipt, Settle::Complete)).collect();
    let settled = world.time.block_on(world.queue.settle(settlements)).unwrap();
    assert!(settled.iter().all(Result::is_ok));
    assert_eq!((world.stored().len(), world.time.block_on(world.plain.depth()).unwrap().total()), (0, 0));
}

// Guarantee: claim_check 2.
#[test]
fn a_body_stays_while_its_message_may_be_delivered_again() {
    let world = World::new(ClaimCheckConfig::default().threshold(10));
    world.time.block_on(world.queue.send_one(Message::new(noise(100)))).unwrap();
    let taken = world.time.block_on(world.queue.receive_one(S(30))).unwrap().unwrap();
    world.time.block_on(world.queue.abandon(&taken.receipt, S(1))).unwrap();
    assert!(world.time.block_on(world.queue.complete(&taken.receipt)).unwrap_err().is_lease_lost());
    assert_eq!(world.stored().len(), 1, "an old receipt removes nothing");
    world.time.advance(S(2));
    let taken = world.time.block_on(world.queue.receive_one(S(30))).unwrap().unwrap();
    world.time.block_on(world.queue.dead_letter(&taken.receipt, "bad")).unwrap();
    let dead = world.queue.dead_letters().unwrap();
    let letter = world.time.block_on(dead.receive_one(S(30))).unwrap().unwrap();
    assert_eq!((letter.body.len(), letter.reason.as_deref()), (100, Some("bad")));
    world.time.block_on(dead.complete(&letter.receipt)).unwrap();
    assert_eq!(world.stored().len(), 0);
}

// Guarantee: claim_check 3.
#[test]
fn a_failed_send_leaves_no_body_and_an_orphan_ends_after_keep() {
    let world = World::new(ClaimCheckConfig::default().threshold(10).keep(S(100)));
    let bounded = Arc::new(InMemoryQueue::builder("jobs").bounded(1).build());
    let queue = ClaimCheck::new(bounded, world.store.clone(), ClaimCheckConfig::default().threshold(10)).unwrap();
    let two = vec![Message::new(noise(100)), Message::new(noise(100))];
    world.time.block_on(queue.send(two)).unwrap_err();
    assert_eq!(world.stored().len(), 0);
    world.time.block_on(world.queue.send_one(Message::new(noise(100)))).unwrap();
    assert_eq!(world.stored().len(), 1);
    world.time.advance(S(101));
    assert_eq!(world.stored().len(), 0);
}

// Guarantee: claim_check 1.
#[test]
fn a_message_with_a_missing_or_corrupted_body_becomes_a_dead_letter_with_that_reason() {
    let world = World::new(ClaimCheckConfig::default().threshold(10).compress(false));
    for body in ["this one is well", "this one is missing", "this one is corrupted", "this one is cut off"] {
        world.time.block_on(world.queue.send_one(Message::new(body))).unwrap();
    }
    let rows = world.time.block_on(world.store.scan_all(Scan::partition("claim-check"))).unwrap();
    for row in rows {
        let key = Key::new("claim-check", &row.row);
        world.time.block_on(async {
            match &row.value[..] {
                b"this one is missing" => drop(world.store.delete(key, Default::default()).await),
                b"this one is corrupted" => drop(world.store.replace(key, "this one is corrupteD", row.version).await),
                b"this one is cut off" => drop(world.store.replace(key, "this one is", row.version).await),
                _ => {}
            }
        });
    }
    let listener = QueueListener::builder(world.queue.clone(), Default::default()).clock(&world.clock).build().unwrap();
    let handled = RefCell::new(Vec::new());
    let run = listener.run(world.clock.sleep(S(60)), async |work: Work| handled.borrow_mut().push(work.body.clone()));
    world.time.block_on(run).unwrap();
    assert_eq!(*handled.borrow(), ["this one is well"]);
    let dead = world.time.block_on(world.plain.dead_letters().unwrap().peek(10)).unwrap();
    let reasons: Vec<_> = dead.into_iter().map(|dead| dead.reason.unwrap()).collect();
    assert_eq!(
        reasons,
        [
            "the claimed body is missing",
            "the claimed body is corrupted: its checksum differs",
            "the claimed body is corrupted: it has 11 bytes instead of 19",
        ]
    );
}

/// An older process of a roll-out made a dead letter of each message of the newer ones.
#[test]
fn a_claim_of_a_newer_release_waits_for_a_process_of_that_release() {
    let world = World::new(ClaimCheckConfig::default().threshold(10));
    let claim = |form: &str| Message::new("").header("claim-check", format!("{form} row 100 00 zstd"));
    for form in ["2", "1", "x"] {
        world.time.block_on(world.plain.send_one(claim(form))).unwrap();
    }
    let receive = || world.time.block_on(world.queue.receive(Receive::new(10, S(30))));
    let error = receive().unwrap_err();
    let expected = "the claimed bodies of 3 messages cannot be fetched: a claim has form 2: use the newer release";
    assert_eq!(error.to_string(), expected);
    assert!(receive().unwrap().is_empty(), "it waits for a tenth of the visibility time-out");
    world.time.advance(S(3));
    receive().unwrap_err();
    let depth = |queue: &dyn Queue| world.time.block_on(queue.depth()).unwrap().total();
    assert_eq!((depth(&*world.plain), depth(&*world.plain.dead_letters().unwrap())), (1, 2));
    world.time.advance(S(3));
    let waiting = world.time.block_on(world.plain.receive_one(S(30))).unwrap().unwrap();
    assert_eq!((waiting.headers["claim-check"].as_str(), waiting.attempts), ("2 row 100 00 zstd", 0));
}

#[test]
fn a_partitioned_queue_delivers_each_group_in_order() {
    let (clock, time) = Clock::manual();
    let parts: Vec<_> =
        (0..4).map(|i| Arc::new(InMemoryQueue::builder(format!("{i}")).clock(&clock).build())).collect();
    let queue = PartitionedQueue::new(parts.iter().map(|part| part.clone() as Arc<dyn Queue>).collect()).unwrap();
    let messages = (0..400).map(|i| Message::new(format!("{}", i / 20)).group(format!("key-{}", i % 20)));
    let ids = time.block_on(queue.send(messages.collect())).unwrap();
    assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 400, "ids are of one kind");
    time.block_on(queue.send((0..8).map(|_| Message::new("no key")).collect())).unwrap();
    let depths: Vec<_> = parts.iter().map(|part| time.block_on(part.depth()).unwrap().total()).collect();
    assert!(depths.iter().all(|depth| *depth >= 42), "spread: {depths:?}");
    let listener = QueueListener::builder(Arc::new(queue.clone()), Default::default()).clock(&clock).build().unwrap();
    let seen = RefCell::new(std::collections::BTreeMap::<String, Vec<u32>>::new());
    let run = listener.run(clock.sleep(S(600)), async |work: Work| {
        clock.sleep(Duration::from_millis(10)).await;
        match &work.group {
            Some(group) => seen
                .borrow_mut()
                .entry(group.clone())
                .or_default()
                .push(String::from_utf8_lossy(&work.body).parse().unwrap()),
            None => panic!("these are set aside"),
        }
    });
    time.block_on(run).unwrap();
    assert_eq!(seen.borrow().len(), 20);
    assert!(seen.borrow().values().all(|seen| seen.iter().copied().eq(0..20)));
    assert_eq!(time.block_on(queue.depth()).unwrap().total() + listener.state().dead_lettered, 8);
    // An old receipt is refused, and so is a foreign one.
    time.block_on(queue.send_one(Message::new("x"))).unwrap();
    let taken = time.block_on(queue.receive_one(S(1))).unwrap().unwrap();
    time.block_on(queue.complete(&taken.receipt)).unwrap();
    assert!(time.block_on(queue.complete(&taken.receipt)).unwrap_err().is_lease_lost());
    let foreign = steadfast::queue::Receipt::new("nobody's");
    assert!(time.block_on(queue.complete(&foreign)).unwrap_err().is_lease_lost());
}
