//! A process that ends at each of its requests, and what another process finds.
use std::{collections::BTreeMap, time::Duration};

use steadfast::{
    queue::{Message, Queue, QueueExt, Receive, redrive},
    testing::crash_at_every_write,
};
use tokio::runtime::Runtime;

use super::{connect, queue::open, shared};
use crate::server;

const MINUTE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Returns how often each body is in these queues.
async fn places(queues: &[&dyn Queue]) -> BTreeMap<String, u32> {
    let mut places = BTreeMap::new();
    for queue in queues {
        for peeked in queue.peek(1000).await.unwrap() {
            *places.entry(String::from_utf8_lossy(&peeked.body).into_owned()).or_default() += 1;
        }
    }
    places
}

#[test]
fn a_message_is_in_one_queue_wherever_its_worker_ends() {
    let (runtime, postgres) = (runtime(), shared());
    let postgres = runtime.block_on(connect(&postgres));
    let mut number = 0;
    let requests = crash_at_every_write(|process| {
        number += 1;
        runtime.block_on(async {
            let queue = open(&postgres, &format!("jobs {number}")).await;
            let target = open(&postgres, &format!("results {number}")).await;
            let (address, counted) = (target.address().unwrap(), process.queue(queue.clone()));
            let work = async {
                let message = |body: &'static str| Message::new(body).group("g").deduplicate(body);
                counted.send(vec![message("forwarded"), message("dead"), message("completed")]).await.unwrap();
                let first = counted.receive_one(SHORT).await.unwrap().unwrap();
                counted.forward(&first.receipt, [(address.clone(), Message::new("forwarded"))]).await.unwrap();
                let second = counted.receive_one(SHORT).await.unwrap().unwrap();
                counted.dead_letter(&second.receipt, "no").await.unwrap();
                let third = counted.receive_one(SHORT).await.unwrap().unwrap();
                counted.complete(&third.receipt).await.unwrap();
            };
            let ended = process.run(work).await.is_some();
            server::pass(SHORT * 2).await;
            let dead = queue.dead_letters().unwrap();
            let places = places(&[&*queue, &*target, &*dead]).await;
            assert!(places.values().all(|copies| *copies == 1), "{places:?}");
            let expected = if ended { 2 } else { 3 };
            assert!(places.is_empty() || [2, expected].contains(&places.len()), "{places:?}");
            // Nothing is stuck: what is left of the group comes, in order.
            let mut left = Vec::new();
            while let Some(taken) = queue.receive_one(MINUTE).await.unwrap() {
                left.push(String::from_utf8_lossy(&taken.body).into_owned());
                queue.complete(&taken.receipt).await.unwrap();
            }
            let order = ["forwarded", "dead", "completed"];
            assert!(order.ends_with(&left.iter().map(String::as_str).collect::<Vec<_>>()), "{left:?}");
            assert_eq!(queue.depth().await.unwrap().total(), 0);
        });
    });
    assert_eq!(requests, 7);
}

#[test]
fn a_redriven_letter_is_in_one_queue_wherever_the_process_ends() {
    let (runtime, postgres) = (runtime(), shared());
    let postgres = runtime.block_on(connect(&postgres));
    let mut number = 0;
    crash_at_every_write(|process| {
        number += 1;
        runtime.block_on(async {
            let queue = open(&postgres, &format!("jobs {number}")).await;
            queue.send(["a", "b", "c"].map(|body| Message::new(body).group("g")).into()).await.unwrap();
            while let Some(taken) = queue.receive_one(MINUTE).await.unwrap() {
                queue.dead_letter(&taken.receipt, "no").await.unwrap();
            }
            let counted = process.queue(queue.clone());
            process.run(redrive(&*counted, 10, |_| true)).await;
            let places = places(&[&*queue, &*queue.dead_letters().unwrap()]).await;
            assert_eq!((places.len(), places.values().max()), (3, Some(&1)), "{places:?}");
        });
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_sent_again_once() {
    let postgres = connect(&shared()).await;
    let queue = open(&postgres, "jobs").await;
    queue.send((0..50).map(|i| Message::new(i.to_string())).collect()).await.unwrap();
    for taken in queue.receive(Receive::new(50, MINUTE)).await.unwrap() {
        queue.dead_letter(&taken.receipt, "no").await.unwrap();
    }
    assert_eq!(redrive(&*queue, 30, |_| true).await.unwrap(), 30);
    assert_eq!(redrive(&*queue, 100, |_| true).await.unwrap(), 20);
    let places = places(&[&*queue]).await;
    assert_eq!((places.len(), places.values().max()), (50, Some(&1)));
    assert_eq!(queue.dead_letters().unwrap().depth().await.unwrap().total(), 0);
}

// Guarantee: queue 2.
/// Regression: an extension in the same statement took the record back.
#[tokio::test(flavor = "multi_thread")]
async fn a_beginning_is_recorded_though_an_extension_shares_its_statement() {
    let config = shared();
    let postgres = connect(&config).await;
    let (mut user, connection) =
        tokio_postgres::connect(&server::Postgres::shared().url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    for (marks, crashes) in [(&[true][..], 1), (&[true, false], 0), (&[false, true], 1)] {
        let queue = open(&postgres, &format!("jobs {marks:?}")).await;
        queue.send(vec![Message::new("held"), Message::new("a")]).await.unwrap();
        let taken = queue.receive(Receive::new(2, MINUTE)).await.unwrap();
        let [held, message] = &taken[..] else { panic!("{taken:?}") };
        // Two requests wait for a lock, so that those behind them gather.
        let holder = user.transaction().await.unwrap();
        let lock = format!("select from \"{}\".messages where body = 'held' for update", config.schema);
        holder.batch_execute(&lock).await.unwrap();
        let marked = marks.iter().map(|begun| queue.mark_begun(&message.receipt, SHORT, *begun));
        let (first, second, marked, extended, free) = tokio::join!(
            queue.extend(&held.receipt, MINUTE),
            queue.extend(&held.receipt, MINUTE),
            futures::future::join_all(marked),
            queue.extend(&message.receipt, SHORT),
            holder.rollback(),
        );
        free.unwrap();
        for done in [first, second, extended].into_iter().chain(marked) {
            done.unwrap();
        }
        let again = queue.receive(Receive::new(1, MINUTE).wait(MINUTE)).await.unwrap();
        assert_eq!((again[0].expiries, again[0].crashes), (1, crashes), "{marks:?}");
    }
}
