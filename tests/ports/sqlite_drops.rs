//! SQLite: each future is dropped at every point at which it waits. Its work is done as a whole or
//! not at all, and blocks no other task.
//!
//! Responses come from threads, so the tests advance time only when no thread responds.
use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Condvar, Mutex},
    task::{Context, Wake, Waker},
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    lease::{Acquired, Lease, Renewed, StoreLease},
    notify::{Notice, Notifier},
    queue::{Delivery, Message, Queue, QueueExt, Receive, Settle},
    store::{DeleteOptions, Key, PutOptions, Scan, Store, StoreExt, Write},
    testing::conformance::run,
    time::{Clock, ManualClock},
};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Woken {
    told: Mutex<bool>,
    tell: Condvar,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        *self.told.lock().unwrap() = true;
        self.tell.notify_all();
    }
}

impl Woken {
    /// Waits for a response of a thread; if none comes, advances to the next timer.
    fn wait(&self, time: &ManualClock) {
        let told = self.told.lock().unwrap();
        let wait = Duration::from_millis(if time.next_timer().is_some() { 100 } else { 60_000 });
        let (mut told, _) = self.tell.wait_timeout_while(told, wait, |told| !*told).unwrap();
        if !std::mem::take(&mut *told) {
            drop(told);
            let next = time.next_timer().expect("it waits, no thread answers, and there is no timer");
            time.advance_to(next);
        }
    }
}

/// Polls the future up to `polls` times, then drops it. Returns its output if it completed.
fn poll_up_to<F: Future>(time: &ManualClock, future: F, polls: usize) -> Option<F::Output> {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut future = pin!(future);
    for poll in 0..polls {
        if poll > 0 {
            woken.wait(time);
        }
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
    }
    None
}

/// Creates the future again for each number of polls, until it completes. `check` receives `true`
/// if it did.
fn drop_everywhere<T, F: Future<Output = T>>(
    time: &ManualClock,
    mut make: impl FnMut() -> F,
    mut check: impl FnMut(Option<T>),
) {
    for polls in 0..100 {
        let output = poll_up_to(time, make(), polls);
        let ended = output.is_some();
        check(output);
        if ended {
            assert!(polls > 0);
            return;
        }
    }
    panic!("the future did not come to its end");
}

fn to_the_end<F: Future>(time: &ManualClock, future: F) -> F::Output {
    poll_up_to(time, future, 10_000).expect("it comes to its end")
}

fn with_each(test: impl Fn(Sqlite, ManualClock)) {
    for durability in [Durability::Full, Durability::Relaxed] {
        let folder = tempfile::tempdir().unwrap();
        let (clock, time) = Clock::manual();
        let config = SqliteConfig::at(folder.path().join("state.db")).durability(durability);
        test(Sqlite::open_with_clock(config, &clock).unwrap(), time);
    }
}

// Guarantee: store 9.
#[test]
fn futures_of_the_store_dropped_at_every_await_write_all_or_nothing() {
    with_each(|sqlite, time| {
        let store = sqlite.store();
        let end = |future| to_the_end(&time, future);
        let mut number = 0;
        let pair = |number: u32| {
            ["a", "b"].map(|row| Write::put(row, number.to_string(), PutOptions::new())).into_iter().collect::<Vec<_>>()
        };
        drop_everywhere(
            &time,
            || {
                number += 1;
                store.batch("p", pair(number))
            },
            |_| {
                let rows = to_the_end(&time, store.scan_all(Scan::partition("p"))).unwrap();
                assert!(rows.is_empty() || (rows.len() == 2 && rows[0].value == rows[1].value), "{rows:?}");
            },
        );
        let mut before = None;
        drop_everywhere(
            &time,
            || store.put(Key::new("p", "c"), "x".into(), PutOptions::new()),
            |put| {
                let version = end(store.get(Key::new("p", "c"))).unwrap().map(|record| record.version);
                assert!(version >= before, "a version goes back");
                before = version;
                assert!(put.is_none() || version == put.unwrap().ok());
            },
        );
        drop_everywhere(
            &time,
            || store.delete(Key::new("p", "c"), DeleteOptions::new()),
            |deleted| {
                let there = end(store.get(Key::new("p", "c"))).unwrap().is_some();
                assert!(deleted.is_none() || !there);
            },
        );
        drop_everywhere(&time, || store.get(Key::new("p", "a")), |got| assert!(got.is_none_or(|got| got.is_ok())));
        let all = Scan::partition("p");
        drop_everywhere(&time, || store.scan(&all), |page| assert!(page.is_none_or(|page| page.is_ok())));
        drop_everywhere(&time, || sqlite.limit_pages(1 << 20), |set| assert!(set.is_none_or(|set| set.is_ok())));
    });
}

// Guarantee: queue 6.
#[test]
fn futures_of_the_queue_dropped_at_every_await_lose_and_duplicate_no_message() {
    with_each(|sqlite, time| {
        let queue = sqlite.queue("jobs").unwrap();
        // A dropped write may still be pending. A later write runs after it.
        let store = sqlite.store();
        let after_all_writes =
            || assert!(to_the_end(&time, store.put(Key::new("p", "r"), "x".into(), PutOptions::new())).is_ok());
        let total = || {
            after_all_writes();
            to_the_end(&time, queue.depth()).unwrap().total()
        };
        // With its id a message is accepted once, however often it is sent.
        let send = || queue.send(vec![Message::new("a").deduplicate("1"), Message::new("b").deduplicate("2")]);
        drop_everywhere(&time, send, |_| assert!([0, 2].contains(&total())));
        assert_eq!(total(), 2);
        // Messages that a dropped receive took come back.
        drop_everywhere(
            &time,
            || queue.receive(Receive::new(1, MINUTE)),
            |taken| {
                assert_eq!(total(), 2);
                time.advance(MINUTE * 2);
                let again = to_the_end(&time, queue.receive(Receive::new(10, MINUTE))).unwrap();
                assert_eq!(again.len(), 2, "after {taken:?}");
                time.advance(MINUTE * 2);
            },
        );
        let take = || -> Delivery {
            after_all_writes();
            time.advance(MINUTE * 2);
            to_the_end(&time, queue.receive(Receive::new(1, MINUTE))).unwrap().remove(0)
        };
        drop_everywhere(
            &time,
            || {
                let receipt = take().receipt;
                let queue = queue.clone();
                async move { queue.extend(&receipt, MINUTE).await }
            },
            |_| assert_eq!(total(), 2),
        );
        for how in [
            Settle::abandon(Duration::ZERO),
            Settle::release(Duration::ZERO),
            Settle::dead_letter("no"),
            Settle::Complete,
        ] {
            if total() == 0 {
                to_the_end(&time, queue.send_one(Message::new("c"))).unwrap();
            }
            let dead = queue.dead_letters().unwrap();
            let all = || total() + to_the_end(&time, dead.depth()).unwrap().total();
            let completes = how == Settle::Complete;
            let left = std::cell::Cell::new(all());
            drop_everywhere(
                &time,
                || {
                    if total() == 0 {
                        to_the_end(&time, queue.send_one(Message::new("c"))).unwrap();
                        left.set(left.get() + 1);
                    }
                    let receipt = take().receipt;
                    queue.settle(vec![(receipt, how.clone())])
                },
                |settled| {
                    let (now, before) = (all(), left.get());
                    if completes {
                        assert!(now == before || now + 1 == before, "{now} of {before}");
                        assert!(settled.is_none() || now + 1 == before);
                        left.set(now);
                    } else {
                        assert_eq!(now, before, "{how:?}");
                    }
                },
            );
        }
        to_the_end(&time, queue.send_one(Message::new("d"))).unwrap();
        drop_everywhere(&time, || queue.depth(), |depth| assert!(depth.is_none_or(|depth| depth.is_ok())));
        drop_everywhere(&time, || queue.peek(5), |peeked| assert!(peeked.is_none_or(|peeked| peeked.is_ok())));
        drop_everywhere(&time, || queue.purge(), |gone| assert!(gone.is_none() || total() == 0));
        // A waiting receive that is dropped takes no message, and the next waiting one is served.
        drop_everywhere(&time, || queue.receive(Receive::new(1, MINUTE).wait(Duration::from_millis(120))), |_| {});
        to_the_end(&time, queue.send_one(Message::new("e"))).unwrap();
        assert_eq!(to_the_end(&time, queue.receive(Receive::new(1, MINUTE).wait(MINUTE))).unwrap().len(), 1);
    });
}

// Guarantee: queue 12.
#[test]
fn forwards_dropped_at_every_await_leave_each_message_in_one_queue() {
    with_each(|sqlite, time| {
        let (queue, other) = (sqlite.queue("jobs").unwrap(), sqlite.queue("others").unwrap());
        let (store, address) = (sqlite.store(), other.address().unwrap());
        let total = |queue: &dyn Queue| to_the_end(&time, queue.depth()).unwrap().total();
        drop_everywhere(
            &time,
            || {
                if total(&queue) == 0 {
                    to_the_end(&time, queue.send_one(Message::new("a"))).unwrap();
                    to_the_end(&time, other.purge()).unwrap();
                }
                time.advance(MINUTE * 2);
                let receipt = to_the_end(&time, queue.receive(Receive::new(1, MINUTE))).unwrap().remove(0).receipt;
                queue.settle(vec![(receipt, Settle::forward([(address.clone(), Message::new("b"))]))])
            },
            |settled| {
                // A dropped write may still be pending. A later write runs after it.
                to_the_end(&time, store.put(Key::new("p", "r"), "x".into(), PutOptions::new())).unwrap();
                let places = (total(&queue), total(&other));
                assert!([(1, 0), (0, 1)].contains(&places), "{places:?}");
                assert!(settled.is_none() || places == (0, 1));
            },
        );
    });
}

// Guarantee: notify 4.
#[test]
fn futures_of_the_notifier_dropped_at_every_await_lose_no_notice() {
    with_each(|sqlite, time| {
        let notifier = sqlite.notifier();
        drop_everywhere(&time, || notifier.subscribe("t"), |_| {});
        let mut notices = to_the_end(&time, notifier.subscribe("t")).unwrap();
        let mut published = 0;
        drop_everywhere(
            &time,
            || {
                published += 1;
                notifier.publish("t", Bytes::from(published.to_string()))
            },
            |_| {},
        );
        to_the_end(&time, notifier.publish("t", Bytes::from_static(b"last"))).unwrap();
        let mut heard = Vec::new();
        while heard.last().is_none_or(|last| *last != Notice::Message(Bytes::from_static(b"last"))) {
            // Dropped after each number of polls, until one returns a notice.
            for polls in 0.. {
                if let Some(notice) = poll_up_to(&time, notices.recv(), polls) {
                    heard.push(notice);
                    break;
                }
            }
        }
        // The first future is never polled, the last one completes.
        assert!(heard.contains(&Notice::Message(Bytes::from(published.to_string()))), "{heard:?}");
        assert!(!heard.contains(&Notice::Gap));
        run(async { sqlite.store().insert(Key::new("p", "after"), "x").await.unwrap() });
    });
}

#[test]
fn futures_of_a_lease_in_the_file_dropped_at_every_await_leave_one_holder() {
    with_each(|sqlite, time| {
        let clock = time.clock();
        let door = || StoreLease::builder(Arc::new(sqlite.store())).clock(&clock).build().unwrap();
        let (lease, other) = (door(), door());
        let mut token = None;
        drop_everywhere(
            &time,
            || lease.acquire("l", "a", MINUTE),
            |granted| {
                if let Some(Ok(Acquired::Granted(granted))) = granted {
                    token = Some(granted);
                }
            },
        );
        let token = token.expect("its own dropped tries do not hold it up");
        let held = to_the_end(&time, other.acquire("l", "b", MINUTE)).unwrap();
        assert!(matches!(held, Acquired::Held(_)), "{held:?}");
        let renewed = |result: Option<Result<Renewed, _>>| assert!(result.is_none_or(|renewed| renewed.is_ok()));
        drop_everywhere(&time, || lease.renew("l", "a", token, MINUTE), renewed);
        drop_everywhere(&time, || lease.read("l"), |read| assert!(read.is_none_or(|read| read.is_ok())));
        // A dropped release may have been applied.
        drop_everywhere(&time, || lease.release("l", "a", token), |_| {});
        match to_the_end(&time, other.acquire("l", "b", MINUTE)).unwrap() {
            Acquired::Granted(next) => assert!(next > token),
            held => panic!("it was released: {held:?}"),
        }
    });
}
