//! Several queues as one: a wait covers all of them, and a failing or slow partition affects only
//! itself.
use std::{cell::Cell, future::Future, sync::Arc, time::Duration};

use steadfast::{
    claim_check::{ClaimCheck, ClaimCheckConfig},
    port::{Capability, Failure, PortError, PortErrorKind},
    queue::{InMemoryQueue, Message, PartitionedQueue, Queue, QueueExt, Receive, Settle},
    store::InMemoryStore,
    testing::{
        drop_at_every_await,
        faults::{FaultConfig, FaultNetwork},
    },
    time::{Clock, ManualClock},
};

const S: fn(u64) -> Duration = Duration::from_secs;
const MS: fn(u64) -> Duration = Duration::from_millis;

fn parts(clock: &Clock, n: usize) -> Vec<Arc<dyn Queue>> {
    (0..n).map(|i| Arc::new(InMemoryQueue::builder(format!("{i}")).clock(clock).build()) as Arc<dyn Queue>).collect()
}

/// Receives with this wait while `meanwhile` runs. Returns the messages and the elapsed time.
fn wait_beside(
    (clock, time): (&Clock, &ManualClock),
    queue: &dyn Queue,
    wait: Duration,
    meanwhile: impl Future<Output = ()>,
) -> (Vec<String>, Duration) {
    let began = clock.now();
    time.block_on(async {
        let receive = async {
            let taken = queue.receive(Receive::new(10, S(30)).wait(wait)).await.unwrap();
            let bodies = taken.iter().map(|taken| String::from_utf8_lossy(&taken.body).into_owned()).collect();
            (bodies, clock.now() - began)
        };
        tokio::join!(receive, meanwhile).0
    })
}

#[test]
fn a_message_in_any_partition_ends_the_wait() {
    for part in 0..4 {
        let (clock, time) = Clock::manual();
        let parts = parts(&clock, 4);
        let queue = PartitionedQueue::new(parts.clone()).unwrap();
        for (wait, at) in [(4000, 3200), (4000, 10), (20_000, 19_999)] {
            let sends = async {
                clock.sleep(MS(at)).await;
                parts[part].send_one(Message::new("a")).await.unwrap();
            };
            let (bodies, after) = wait_beside((&clock, &time), &queue, MS(wait), sends);
            assert_eq!((bodies, after), (vec!["a".to_owned()], MS(at)), "part {part}");
        }
        let (bodies, after) = wait_beside((&clock, &time), &queue, S(4), async {});
        assert_eq!((bodies.len(), after), (0, S(4)), "and a wait that is over is over");
    }
}

#[test]
fn a_dropped_wait_leaves_no_message_hidden_in_other_partitions() {
    let (clock, time) = Clock::manual();
    let parts = parts(&clock, 3);
    let queue = PartitionedQueue::new(parts.clone()).unwrap();
    let sends = async {
        clock.sleep(S(1)).await;
        for part in &parts {
            part.send_one(Message::new("a")).await.unwrap();
        }
    };
    let (bodies, _) = wait_beside((&clock, &time), &queue, S(4), sends);
    assert_eq!(bodies.len(), 1);
    assert_eq!(time.block_on(queue.depth()).unwrap().visible, 2);
    let mut attempts = Vec::new();
    while let Some(taken) = time.block_on(queue.receive_one(S(30))).unwrap() {
        attempts.push((taken.deliveries, taken.attempts));
    }
    assert_eq!(attempts, [(1, 0), (1, 0)]);
}

#[test]
fn a_partition_that_fails_or_hangs_delays_no_message_of_the_others() {
    let (clock, time) = Clock::manual();
    let mut all = parts(&clock, 3);
    let network = FaultNetwork::new(FaultConfig::default(), 1, &clock).unwrap();
    let far = network.client("far");
    all[1] = far.queue(all[1].clone());
    let queue = PartitionedQueue::new(all.clone()).unwrap();
    far.cut();
    let sends = async {
        clock.sleep(S(2)).await;
        all[2].send_one(Message::new("a")).await.unwrap();
    };
    let (bodies, after) = wait_beside((&clock, &time), &queue, S(4), sends);
    assert_eq!((bodies.len(), after), (1, S(2)));
    let error = time.block_on(queue.receive(Receive::new(1, S(1)).wait(S(3)))).unwrap_err();
    assert_eq!(error.class(), steadfast::port::ErrorClass::Transient);
    far.heal();

    // One partition hangs during a settle request: the messages of the others are settled
    // nevertheless.
    for part in &all {
        time.block_on(part.send_one(Message::new("b"))).unwrap();
    }
    let mut receipts = Vec::new();
    while let Some(taken) = time.block_on(queue.receive_one(S(300))).unwrap() {
        receipts.push((taken.receipt, Settle::Complete));
    }
    assert_eq!(receipts.len(), 3);
    far.pause();
    time.block_on(async {
        tokio::select! {
            biased;
            _ = queue.settle(receipts) => panic!("a part hangs"),
            () = clock.sleep(S(5)) => {}
        }
    });
    assert_eq!(
        [0, 2].map(|part| time.block_on(all[part].depth()).unwrap().total()),
        [0, 1],
        "but for the first message"
    );
}

#[test]
fn a_partitioned_queue_states_no_order_across_partitions_and_deduplicates_within_a_group() {
    let (clock, time) = Clock::manual();
    let one = PartitionedQueue::new(parts(&clock, 1)).unwrap();
    let queue = PartitionedQueue::new(parts(&clock, 5)).unwrap();
    assert!(!queue.capabilities().has(Capability::Ordered));
    assert!(one.capabilities().has(Capability::Ordered), "one part is in order");
    assert!(queue.capabilities().has(Capability::Deduplication));
    for _ in 0..3 {
        for i in 0..50 {
            let message = Message::new("a").deduplicate(format!("order-{i}"));
            time.block_on(queue.send_one(message.clone())).unwrap();
            time.block_on(queue.send_one(message.deduplicate(format!("grouped-{i}")).group(format!("{}", i % 7))))
                .unwrap();
        }
    }
    assert_eq!(time.block_on(queue.depth()).unwrap().total(), 100);
}

#[test]
fn a_partitioned_queue_dropped_at_any_await_loses_nothing() {
    let (clock, time) = Clock::manual();
    let near = parts(&clock, 3);
    let network = FaultNetwork::new(FaultConfig::default().latency(MS(1), MS(2)), 1, &clock).unwrap();
    let client = network.client("a");
    let queue = PartitionedQueue::new(near.iter().map(|part| client.queue(part.clone())).collect()).unwrap();
    let direct = PartitionedQueue::new(near.clone()).unwrap();
    let total = || time.block_on(direct.depth()).unwrap().total();

    // Send: each message is accepted or not, and an id makes it safe to send again.
    let batch = || (0..9).map(|i| Message::new(format!("{i}")).deduplicate(format!("{i}"))).collect::<Vec<_>>();
    let polls = drop_at_every_await(&time, || queue.send(batch()), |_| assert!(total() <= 9));
    assert!(polls > 1 && total() == 9, "{polls}");

    // Receive with a wait: no message is lost.
    for part in &near {
        time.block_on(part.purge()).unwrap();
    }
    let polls = drop_at_every_await(&time, || queue.receive(Receive::new(10, S(1)).wait(S(2))), |_| time.advance(S(2)));
    assert!(polls > 3, "{polls}");
    time.block_on(direct.send((0..9).map(|i| Message::new(format!("{i}"))).collect())).unwrap();
    drop_at_every_await(
        &time,
        || queue.receive(Receive::new(10, S(1)).wait(S(2))),
        |_| {
            time.advance(S(2));
            assert_eq!(time.block_on(direct.depth()).unwrap().visible, 9);
        },
    );

    // Settle: each message is settled or delivered again, and none of another partition is touched.
    let left = Cell::new(9);
    drop_at_every_await(
        &time,
        || {
            time.advance(S(20));
            let (queue, direct) = (&queue, &direct);
            async move {
                let mut receipts = Vec::new();
                while let Some(taken) = direct.receive_one(S(10)).await.unwrap() {
                    receipts.push((taken.receipt, Settle::Complete));
                }
                queue.settle(receipts).await
            }
        },
        |_| {
            assert!(total() <= left.get(), "what is settled stays so");
            left.set(total());
        },
    );
    assert_eq!(total(), 0);
}

/// One partition lacks the capability, so the whole queue does: the outcome of a forward does not
/// depend on the partition of its message.
// Guarantee: queue 13.
#[test]
fn a_forward_is_refused_at_each_partition_if_one_cannot_forward() {
    let (clock, time) = Clock::manual();
    let mut parts = parts(&clock, 2);
    let checked = ClaimCheck::new(parts[1].clone(), Arc::new(InMemoryStore::new()), ClaimCheckConfig::default());
    parts[1] = Arc::new(checked.unwrap());
    let queue = PartitionedQueue::new(parts).unwrap();
    let results = InMemoryQueue::builder("results").clock(&clock).build();
    time.block_on(async {
        queue.send(vec![Message::new("a"), Message::new("b")]).await.unwrap();
        for _ in 0..2 {
            let taken = queue.receive_one(S(30)).await.unwrap().unwrap();
            let message = (results.address().unwrap(), Message::new("c"));
            let error = queue.forward(&taken.receipt, [message]).await.unwrap_err();
            assert_eq!(error.backend().map(PortError::kind), Some(PortErrorKind::Unsupported));
            queue.complete(&taken.receipt).await.unwrap();
        }
        assert_eq!(results.depth().await.unwrap().total(), 0);
    });
}
