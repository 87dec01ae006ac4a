//! A million messages through listeners that are killed and restarted every second, over a failing
//! network. Each message is handled, and the recorded faults explain each further run of a handler.
//! Also load levelling at the full size of its arrival curve.
use std::{
    future::{Future, pending},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use steadfast::{
    backoff::BackoffConfig,
    entropy::Entropy,
    port::{Failure, PortErrorKind},
    queue::{InMemoryQueue, Message, Queue},
    queue_listener::{QueueListener, QueueListenerConfig, Work},
    testing::faults::for_each_seed,
    time::Clock,
};

use crate::listener_world::{End, Ledger, Line, Planted, UnderWay, drive};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;

/// Returns the number of messages, which is smaller in an unoptimized build. `STEADFAST_MESSAGES`
/// sets it.
fn messages() -> u64 {
    let asked = std::env::var("STEADFAST_MESSAGES").ok().map(|n| n.parse().expect("STEADFAST_MESSAGES is a number"));
    asked.unwrap_or(if cfg!(debug_assertions) { 20_000 } else { 1_000_000 })
}

fn line(queue: &Arc<InMemoryQueue>, clock: &Clock, entropy: &Entropy, lost: (f64, f64)) -> Arc<dyn Queue> {
    Arc::new(Line {
        queue: queue.clone(),
        clock: clock.clone(),
        entropy: Entropy::from_seed(entropy.next_u64()),
        under_way: UnderWay::new(AtomicUsize::new(0)),
        planted: Planted::Nothing,
        lost,
        slowness: Arc::default(),
    })
}

#[expect(clippy::print_stderr, reason = "the counts are what is to be seen")]
fn storm(seed: u64, messages: u64) {
    let (clock, time) = Clock::manual();
    let (entropy, ledger) = (Entropy::from_seed(seed), Ledger::default());
    let queue = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
    let (kills, stops) = (AtomicU64::new(0), AtomicU64::new(0));
    let process = async |process: usize| {
        for number in 0.. {
            let by = (process, number);
            let config = QueueListenerConfig::default()
                .batch(16)
                .tasks(1, 8)
                .max_attempts(50)
                .max_expiries(50)
                .visibility(S(10));
            let config = config.retry(BackoffConfig::default().between(MS(10), MS(100)));
            let listener = QueueListener::builder(line(&queue, &clock, &entropy, (0.05, 0.02)), config)
                .clock(&clock)
                .entropy(&Entropy::from_seed(entropy.next_u64()))
                .build()
                .unwrap();
            let mut events = listener.events();
            let handler = async |work: Work| {
                let number = std::str::from_utf8(&work.body).unwrap().parse().unwrap();
                let run = ledger.begin(&clock, &work.id, number, by);
                if entropy.unit() < 0.5 {
                    clock.sleep(MS(entropy.up_to(50))).await;
                }
                if entropy.unit() < 0.05 {
                    run.end(End::Failed);
                    return Err("at random");
                }
                *ledger.effects.lock().unwrap().entry(number).or_default() += 1;
                run.end(End::Completed);
                Ok(())
            };
            let (lives, is_killed) = (MS(200 + entropy.up_to(3000)), entropy.unit() < 0.5);
            let shutdown = async { if is_killed { pending().await } else { clock.sleep(lives).await } };
            let kill = async { if is_killed { clock.sleep(lives).await } else { pending().await } };
            let was_killed = tokio::select! {
                biased;
                () = async {
                    loop {
                        match events.recv().await {
                            Ok(event) => ledger.told(by, event.what),
                            Err(_) => drop(ledger.missed_events.fetch_add(1, SeqCst)),
                        }
                    }
                } => unreachable!("it hears for ever"),
                ended = listener.run(shutdown, handler) => {
                    ended.expect("nothing that does not pass by itself");
                    false
                }
                () = kill => true,
            };
            while let Ok(Some(event)) = events.try_recv() {
                ledger.told(by, event.what);
            }
            if was_killed {
                ledger.killed(by, clock.now());
            }
            (if was_killed { &kills } else { &stops }).fetch_add(1, SeqCst);
        }
    };
    let world = async {
        for lot in 0..messages / 100 {
            let batch = (0..100).map(|i| Message::new(format!("{}", lot * 100 + i))).collect();
            queue.send(batch).await.unwrap();
        }
        let ends = async {
            while queue.depth().await.unwrap().total() > 0 {
                clock.sleep(S(1)).await;
            }
        };
        tokio::select! {
            biased;
            () = ends => {}
            _ = futures::future::join(process(0), process(1)) => unreachable!("processes do not end"),
        }
    };
    drive(&time, &UnderWay::new(AtomicUsize::new(0)), world);
    let dead = time.block_on(queue.dead_letters().unwrap().depth()).unwrap().total();
    let (causes, unexplained) = ledger.explain();
    let (runs, effects) = (ledger.runs(), ledger.effects.lock().unwrap().len() as u64);
    let explained: u64 = causes.values().sum();
    eprintln!(
        "seed {seed}: {messages} messages, {runs} runs, {} kills, {} stops, {dead} dead letters; further runs: {causes:?}; {:?}",
        kills.load(SeqCst),
        stops.load(SeqCst),
        time.now(),
    );
    assert_eq!((effects, dead), (messages, 0), "each is handled");
    assert_eq!(ledger.missed_events.load(SeqCst), 0, "all events are heard");
    assert!(unexplained.is_empty(), "{}: {:?}", unexplained.len(), &unexplained[..unexplained.len().min(3)]);
    assert_eq!(ledger.overlaps.load(SeqCst), 0, "no message is with two handlers");
    assert_eq!(runs, messages + explained);
    assert!(kills.load(SeqCst) > 2, "{kills:?}");
}

#[test]
fn each_of_a_million_messages_is_handled_and_each_further_run_is_explained() {
    for_each_seed(0..1, |seed| storm(seed, messages()));
}

#[test]
fn the_full_arrival_curve_is_accepted_in_time_and_refused_by_name_beyond_the_bound() {
    let (clock, time) = Clock::manual();
    let entropy = Entropy::from_seed(1);
    let queue = Arc::new(InMemoryQueue::builder("jobs").bounded(200_000).clock(&clock).build());
    let config = QueueListenerConfig::default().tasks(1, 64).batch(100);
    let listener = QueueListener::builder(queue.clone(), config).clock(&clock).build().unwrap();
    let door = line(&queue, &clock, &entropy, (0.0, 0.0));
    let scale = if cfg!(debug_assertions) { 20 } else { 1 };
    // Capacity is 12,800 a second; 10,000 a second arrive for 60 s, and 50,000 a second for 10 s of
    // them.
    let handled = AtomicU64::new(0);
    let run = listener.run(clock.sleep(S(240)), async |_: Work| {
        clock.sleep(MS(5)).await;
        handled.fetch_add(1, SeqCst);
    });
    let (accepted, full, mut times) = (AtomicU64::new(0), AtomicU64::new(0), Vec::new());
    let send = async |tick: u64| {
        let n = if (1000..1500).contains(&tick) { 1000 } else { 200 } / scale;
        let began = clock.now();
        match door.send((0..n).map(|_| Message::new("x")).collect()).await {
            Ok(_) => drop(accepted.fetch_add(n, SeqCst)),
            Err(error) => {
                assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Full);
                full.fetch_add(n, SeqCst);
            }
        }
        clock.now() - began
    };
    let sends = async {
        for tick in 0..3000 {
            // Sends overlap, so each has its own time.
            let (time, ()) = tokio::join!(send(tick), clock.sleep(MS(20)));
            times.push(time);
            assert!(queue.depth().await.unwrap().total() <= 200_000, "bounded");
        }
    };
    let both: std::pin::Pin<Box<dyn Future<Output = _>>> = Box::pin(async { tokio::join!(run, sends).0 });
    time.block_on(both).unwrap();
    times.sort_unstable();
    let percentile = times[times.len() * 99 / 100];
    let (accepted, full) = (accepted.load(SeqCst), full.load(SeqCst));
    eprintln!("{accepted} accepted, {full} refused as full; 99th percentile of a send {percentile:?}");
    assert!(percentile < MS(500), "{percentile:?}");
    assert_eq!((handled.load(SeqCst), listener.state().handled), (accepted, accepted), "none is lost");
    assert_eq!(full > 0, scale == 1, "at full size the bound is passed");
}
