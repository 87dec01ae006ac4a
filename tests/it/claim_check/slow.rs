//! Claim checks over a slow, unavailable or partly damaged store: messages with bodies are returned
//! at once, and the others are released.
use std::{
    cell::{Cell, RefCell},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use steadfast::{
    claim_check::{ClaimCheck, ClaimCheckConfig},
    entropy::Entropy,
    port::{ErrorClass, Failure, PortErrorKind},
    queue::{InMemoryQueue, Message, Queue, Receive, Settle},
    queue_listener::{QueueCall, QueueListener, QueueListenerEvent as Event, Work},
    store::{Scan, StoreExt},
    testing::drop_at_every_await,
    time::{Clock, ManualClock},
};

use crate::moody_store::{Mode, Moody};

const S: fn(u64) -> Duration = Duration::from_secs;
const MS: fn(u64) -> Duration = Duration::from_millis;

struct World {
    clock: Clock,
    time: ManualClock,
    plain: Arc<InMemoryQueue>,
    store: Arc<Moody>,
    queue: Arc<ClaimCheck>,
}

impl World {
    /// The claim check gets the clock only if `bounded`.
    fn new(bounded: bool) -> Self {
        let (clock, time) = Clock::manual();
        let plain = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
        let store = Arc::new(Moody::new(&clock));
        let config = ClaimCheckConfig::default().threshold(10).compress(false);
        let mut queue = ClaimCheck::builder(plain.clone(), store.clone(), config);
        if bounded {
            queue = queue.clock(&clock);
        }
        Self { clock, time, plain, store, queue: Arc::new(queue.build().unwrap()) }
    }

    fn send(&self, bodies: impl IntoIterator<Item = String>) {
        let messages: Vec<_> = bodies.into_iter().map(Message::new).collect();
        for some in messages.chunks(100) {
            self.time.block_on(self.queue.send(some.to_vec())).unwrap();
        }
    }

    fn large(n: usize) -> impl Iterator<Item = String> {
        (0..n).map(|i| format!("{i:04} and a body that is large"))
    }

    fn dead(&self) -> u64 {
        self.time.block_on(self.plain.dead_letters().unwrap().depth()).unwrap().total()
    }

    fn left(&self) -> u64 {
        self.time.block_on(self.plain.depth()).unwrap().total()
    }

    fn receive(&self, max: usize) -> (Result<Vec<String>, steadfast::queue::QueueError>, Duration) {
        let began = self.clock.now();
        let taken = self.time.block_on(self.queue.receive(Receive::new(max, S(30))));
        let bodies = taken.map(|taken| taken.iter().map(|t| String::from_utf8_lossy(&t.body).into_owned()).collect());
        (bodies, self.clock.now() - began)
    }

    /// Number of deliveries in the plain queue that were counted as attempts.
    fn attempts(&self) -> u32 {
        self.time.block_on(self.plain.peek(1000)).unwrap().iter().map(|peeked| peeked.attempts + peeked.expiries).sum()
    }

    /// Runs a listener of default settings for this time. Returns the handled bodies and its
    /// events.
    fn listen(&self, time: Duration, meanwhile: impl Future<Output = ()>) -> (Vec<String>, Vec<Event>) {
        let listener = QueueListener::builder(self.queue.clone(), Default::default())
            .clock(&self.clock)
            .entropy(&Entropy::from_seed(1));
        let listener = listener.build().unwrap();
        let (mut events, handled) = (listener.events(), RefCell::new(Vec::new()));
        let run = listener.run(self.clock.sleep(time), async |work: Work| {
            handled.borrow_mut().push(String::from_utf8_lossy(&work.body).into_owned());
        });
        let told = RefCell::new(Vec::new());
        self.time.block_on(async {
            tokio::select! {
                biased;
                () = async {
                    let (ended, ()) = tokio::join!(run, meanwhile);
                    ended.unwrap();
                } => {}
                () = async {
                    loop {
                        if let Ok(event) = events.recv().await {
                            told.borrow_mut().push(event.what);
                        }
                    }
                } => {}
            }
        });
        (handled.into_inner(), told.into_inner())
    }
}

// Guarantee: claim_check 4.
#[test]
fn bodies_are_fetched_concurrently_and_a_slow_store_makes_no_dead_letter() {
    for bounded in [true, false] {
        let world = World::new(bounded);
        world.send(World::large(200));
        world.store.is(Mode::Slow(MS(170)));
        let (mut handled, _) = world.listen(S(20), async {});
        handled.sort_unstable();
        assert!(handled.into_iter().eq(World::large(200)), "each once");
        assert_eq!((world.left(), world.dead()), (0, 0));
        assert!(world.store.most.load(Ordering::Relaxed) > 8, "side by side");
        let stored = world.time.block_on(world.store.store.scan_all(Scan::partition("claim-check"))).unwrap();
        assert_eq!(stored.len(), 0, "bodies are removed");
    }
}

#[test]
fn one_receive_fetches_at_most_32_bodies_at_once() {
    let world = World::new(true);
    world.send(World::large(300));
    world.store.is(Mode::Slow(MS(100)));
    world.store.most.store(0, Ordering::Relaxed);
    let (taken, after) = world.receive(300);
    assert_eq!((taken.unwrap().len(), after), (300, S(1)));
    assert_eq!(world.store.most.load(Ordering::Relaxed), 32);
    // Stored concurrently, too.
    let began = world.clock.now();
    world.send(World::large(64));
    assert_eq!(world.clock.now() - began, MS(200));
}

// Guarantee: claim_check 4.
#[test]
fn messages_with_bodies_are_returned_and_the_others_released_within_the_time_limit() {
    let world = World::new(true);
    world.send(
        ["hangs, and does not come", "small", "a body that does come", "tiny", "hangs, too, for ever"]
            .map(String::from),
    );
    let (taken, after) = world.receive(10);
    assert_eq!(taken.unwrap(), ["small", "a body that does come", "tiny"]);
    assert!(after <= S(30) / 8, "{after:?}");
    world.time.advance(S(3));
    let depth = world.time.block_on(world.plain.depth()).unwrap();
    assert_eq!((depth.visible, depth.in_flight, world.attempts()), (2, 3, 0), "released");
    // If it can return nothing, it fails with the reason.
    let (taken, after) = world.receive(10);
    let error = taken.unwrap_err();
    assert_eq!((error.class(), error.backend().unwrap().kind()), (ErrorClass::Transient, PortErrorKind::TimedOut));
    assert!(error.to_string().contains("the claimed bodies of 2 messages") && after <= S(30) / 8, "{error} {after:?}");
    assert_eq!((world.attempts(), world.dead()), (0, 0));
}

// Guarantee: claim_check 4.
#[test]
fn a_store_that_refuses_does_not_end_the_queue() {
    for (kind, told) in [
        (PortErrorKind::Unavailable, PortErrorKind::Unavailable),
        (PortErrorKind::Throttled, PortErrorKind::Throttled),
        (PortErrorKind::Denied, PortErrorKind::Unavailable),
        (PortErrorKind::Corrupt, PortErrorKind::Unavailable),
    ] {
        let world = World::new(true);
        world.send(World::large(5));
        world.store.is(Mode::Fails(kind));
        let (taken, after) = world.receive(10);
        let error = taken.unwrap_err();
        assert_eq!((error.backend().unwrap().kind(), after), (told, Duration::ZERO));
        assert!(error.to_string().contains("the store is away"), "{error}");
        assert_eq!((world.attempts(), world.dead(), world.left()), (0, 0, 5));
        world.store.is(Mode::Well);
        world.time.advance(S(3));
        assert_eq!(world.receive(10).0.unwrap().len(), 5);
    }
}

// Guarantee: claim_check 4.
#[test]
fn a_store_that_is_away_for_an_hour_costs_no_message_an_attempt() {
    for mode in [Mode::Fails(PortErrorKind::Unavailable), Mode::Hangs, Mode::Slow(S(20))] {
        let world = World::new(true);
        world.send(World::large(300));
        world.store.is(mode);
        let counted = Cell::new(None);
        let (mut handled, told) = world.listen(S(3660), async {
            world.clock.sleep(S(3599)).await;
            let peeked = world.plain.peek(1000).await.unwrap();
            counted.set(Some(peeked.iter().map(|peeked| peeked.attempts + peeked.expiries).sum::<u32>()));
            world.clock.sleep(S(1)).await;
            world.store.is(Mode::Well);
        });
        assert_eq!((counted.get(), world.dead(), world.left()), (Some(0), 0, 0), "{mode:?}");
        handled.sort_unstable();
        assert!(handled.into_iter().eq(World::large(300)), "each once, within a minute of its return: {mode:?}");
        let kind = if mode == Mode::Fails(PortErrorKind::Unavailable) {
            PortErrorKind::Unavailable
        } else {
            PortErrorKind::TimedOut
        };
        let failed = Event::CallFailed { call: QueueCall::Receive, kind: Some(kind) };
        let times = told.iter().filter(|event| **event == failed).count();
        assert!((10..10_000).contains(&times), "told why, at intervals: {times} {mode:?}");
    }
}

// Guarantee: claim_check 4.
#[test]
fn bodies_over_a_slow_connection_arrive_though_many_at_once_would_not() {
    let world = World::new(true);
    world.send(World::large(100));
    // 32 at once take 12.8 s, longer than any receive waits.
    world.store.is(Mode::Narrow(MS(400)));
    let mut came = 0;
    for _ in 0..100 {
        let taken = world.time.block_on(world.queue.receive(Receive::new(32, S(30)))).unwrap_or_default();
        came += taken.len();
        let all = taken.into_iter().map(|taken| (taken.receipt, Settle::Complete)).collect();
        world.time.block_on(world.queue.settle(all)).unwrap();
        world.time.advance(S(3));
    }
    assert_eq!(came, 100);
    assert_eq!((world.dead(), world.attempts()), (0, 0));
}

// Guarantee: claim_check 5.
#[test]
fn a_claim_check_dropped_at_any_await_releases_its_messages() {
    let world = World::new(true);
    world.send(World::large(4));
    world.store.is(Mode::Slow(MS(170)));
    let came = Cell::new(0);
    let polls = drop_at_every_await(
        &world.time,
        || async { came.set(world.queue.receive(Receive::new(10, S(30))).await.unwrap().len()) },
        |_| {
            if came.get() == 0 {
                // The next receive releases them, long before they would be visible again.
                world.store.is(Mode::Well);
                let taken = world.time.block_on(world.queue.receive(Receive::new(10, S(30)))).unwrap();
                assert_eq!(taken.iter().map(|taken| (taken.attempts, taken.expiries)).collect::<Vec<_>>(), [(0, 0); 4]);
                let back = taken.into_iter().map(|taken| (taken.receipt, Settle::release(Duration::ZERO))).collect();
                world.time.block_on(world.queue.settle(back)).unwrap();
                world.store.is(Mode::Slow(MS(170)));
            }
        },
    );
    assert!(polls > 1 && came.get() == 4, "{polls}");

    // A settlement is applied or not. A send is accepted or not, and no message lacks its body.
    world.time.advance(S(31));
    drop_at_every_await(
        &world.time,
        || async {
            let taken = world.queue.receive(Receive::new(10, S(30))).await.unwrap();
            let all = taken.into_iter().map(|taken| (taken.receipt, Settle::Complete)).collect();
            world.queue.settle(all).await.unwrap();
        },
        |_| {
            world.time.advance(S(31));
            assert!(world.left() == 4 || world.left() == 0);
        },
    );
    assert_eq!((world.left(), world.dead()), (0, 0));
    let batch = || World::large(3).map(|body| Message::new(body.clone()).deduplicate(body)).collect();
    drop_at_every_await(&world.time, || world.queue.send(batch()), |_| assert!([0, 3].contains(&world.left())));
    world.store.is(Mode::Well);
    assert_eq!(world.receive(10).0.unwrap().len(), 3);
}
