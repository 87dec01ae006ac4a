//! Clocks: wall time beside monotonic time.
use std::{collections::BTreeSet, future::Future, pin::Pin, time::Duration};

use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    queue::{InMemoryQueue, Message, Queue, QueueExt, Receive},
    time::{Clock, Instant, ManualClock, TimeSource, Timestamp},
};

const S: fn(u64) -> Duration = Duration::from_secs;
const NOON: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn after(start: Timestamp, millis: u64) -> Timestamp {
    Timestamp::from_millis(start.as_millis() + millis)
}

#[test]
fn a_manual_clock_s_wall_time_is_set_and_moves_with_the_clock() {
    let (clock, time) = Clock::manual();
    assert_eq!(clock.wall(), Timestamp::from_millis(1000));
    time.advance(S(2));
    assert_eq!(clock.wall(), Timestamp::from_millis(3000));

    let before = clock.now();
    time.set_wall(NOON);
    assert_eq!((clock.wall(), clock.now()), (NOON, before));
    time.advance(S(60));
    assert_eq!((clock.wall(), time.clock().wall()), (after(NOON, 60_000), after(NOON, 60_000)));
    assert_eq!(clock.now() - before, S(60));
}

#[test]
fn a_manual_clock_s_wall_time_may_jump_to_both_ends() {
    let (clock, time) = Clock::manual();
    time.advance(S(3600));
    for end in [0, 7, u64::MAX] {
        time.set_wall(Timestamp::from_millis(end));
        assert_eq!(clock.wall().as_millis(), end);
    }
    time.advance(S(1));
    assert_eq!(clock.wall().as_millis(), u64::MAX);
}

#[test]
fn a_skewed_clock_s_wall_time_runs_at_its_rate() {
    let (clock, time) = Clock::manual();
    let fast = time.clock_at_rate(2.0);
    time.set_wall(NOON);
    assert_eq!(fast.wall(), NOON);
    time.advance(S(10));
    assert_eq!((clock.wall(), fast.wall()), (after(NOON, 10_000), after(NOON, 20_000)));
}

/// A custom source at the origin, with or without a wall time of its own.
struct Still;
struct StillAtNoon;

fn never() -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(std::future::pending())
}

impl TimeSource for Still {
    fn now(&self) -> Instant {
        Instant::default()
    }
    fn sleep_until(&self, _: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        never()
    }
}

impl TimeSource for StillAtNoon {
    fn now(&self) -> Instant {
        Instant::default()
    }
    fn sleep_until(&self, _: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        never()
    }
    fn wall(&self) -> Timestamp {
        NOON
    }
}

#[test]
fn a_custom_source_has_the_system_s_wall_time_unless_it_gives_one() {
    let system = Clock::tokio().wall();
    let difference = Clock::from_source(Still).wall().as_millis().abs_diff(system.as_millis());
    assert!(difference < 60_000, "{difference} ms");
    assert_eq!(Clock::from_source(StillAtNoon).wall(), NOON);
}

#[tokio::test(start_paused = true)]
async fn tokio_s_wall_time_follows_a_paused_runtime() {
    let clock = Clock::tokio();
    let before = clock.wall();
    tokio::time::advance(S(86_400)).await;
    let passed = clock.wall().as_millis() - before.as_millis();
    assert!((86_400_000 - 5..86_400_000 + 60_000).contains(&passed), "{passed} ms");
}

async fn sent_at(time: &ManualClock, queue: impl Queue) -> Timestamp {
    time.advance(S(5));
    queue.send_one(Message::new("report")).await.unwrap();
    queue.receive(Receive::new(1, S(30))).await.unwrap()[0].sent_at
}

#[test]
fn a_queue_in_memory_stamps_messages_with_its_clock_s_wall_time() {
    let (clock, time) = Clock::manual();
    time.set_wall(NOON);
    let queue = InMemoryQueue::builder("jobs").clock(&clock).build();
    assert_eq!(time.block_on(sent_at(&time, queue)), after(NOON, 5000));
}

#[tokio::test]
async fn a_queue_in_a_file_stamps_messages_with_its_clock_s_wall_time() {
    let (clock, time) = Clock::manual();
    time.set_wall(NOON);
    let directory = tempfile::tempdir().unwrap();
    let file = Sqlite::open_with_clock(SqliteConfig::at(directory.path().join("jobs.db")), &clock).unwrap();
    assert_eq!(sent_at(&time, file.queue("jobs").unwrap()).await, after(NOON, 5000));
}

#[test]
fn a_manual_clock_stands_still_while_a_thread_of_sqlite_works() {
    for durability in [Durability::Full, Durability::Relaxed] {
        let (clock, time) = Clock::manual();
        let directory = tempfile::tempdir().unwrap();
        let config = SqliteConfig::at(directory.path().join("jobs.db")).durability(durability);
        let queue = Sqlite::open_with_clock(config, &clock).unwrap().queue("jobs").unwrap();
        // Each request is made beside a timer that is due after a nanosecond, and ends before it.
        let within = async |request: Pin<Box<dyn Future<Output = ()> + Send + '_>>| {
            let start = clock.now();
            let timer = std::pin::pin!(clock.sleep(Duration::from_nanos(1)));
            let is_first = matches!(futures::future::select(request, timer).await, futures::future::Either::Left(_));
            assert!(is_first, "the time went on");
            clock.now() - start
        };
        let passed: BTreeSet<Duration> = time.block_on(async {
            let mut passed = BTreeSet::new();
            // Beyond the commits after which the thread checkpoints.
            for i in 0..500_u64 {
                passed.insert(
                    within(Box::pin(async { drop(queue.send_one(Message::new("report")).await.unwrap()) })).await,
                );
                passed
                    .insert(within(Box::pin(async { assert_eq!(queue.depth().await.unwrap().total(), i + 1) })).await);
            }
            passed
        });
        assert_eq!(passed, BTreeSet::from([Duration::ZERO]));
    }
}
