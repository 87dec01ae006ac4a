//! Events are sent outside any lock, so that a listener may call the policy.
use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use steadfast::{
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent as Event, State},
    testing::ManualClock,
    time::Clock,
};
use tracing_subscriber::layer::SubscriberExt;

fn breaker() -> (CircuitBreaker, ManualClock) {
    let (clock, time) = Clock::manual();
    (CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap(), time)
}

/// A `tracing` layer that closes the breaker on an isolation, first from another thread, then
/// itself.
struct UsesTheBreaker(CircuitBreaker);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for UsesTheBreaker {
    fn on_event(&self, _: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if self.0.state() == State::Isolated {
            std::thread::scope(|scope| scope.spawn(|| self.0.close()).join().unwrap());
            self.0.close();
        }
    }
}

/// Regression: the lock of the outbox was held, so a `tracing` layer that called back waited
/// forever.
#[test]
fn a_listener_may_use_the_policy_that_it_listens_to() {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let (breaker, _hand) = breaker();
        let mut events = breaker.events();
        let listener = tracing_subscriber::registry().with(UsesTheBreaker(breaker.clone()));
        tracing::subscriber::with_default(listener, || breaker.isolate());
        let mut told = Vec::new();
        while let Ok(Some(event)) = events.try_recv() {
            told.push((event.number, event.what));
        }
        done.send(told).unwrap();
    });
    // This long only if it never ends.
    let told = ended.recv_timeout(Duration::from_secs(20)).expect("a lock is held while events are sent");
    assert_eq!(told, [(1, Event::Isolated), (2, Event::Closed), (3, Event::Closed)]);
}

/// A `tracing` layer that panics once.
struct PanicsOnce(AtomicBool);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for PanicsOnce {
    fn on_event(&self, _: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        assert!(self.0.swap(true, Ordering::SeqCst), "a layer's own trouble");
    }
}

#[test]
fn events_after_a_panic_in_a_tracing_layer_arrive_without_a_gap() {
    let (breaker, _hand) = breaker();
    let mut events = breaker.events();
    let listener = tracing_subscriber::registry().with(PanicsOnce(false.into()));
    tracing::subscriber::with_default(listener, || {
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| breaker.isolate()));
        assert!(panicked.is_err());
        breaker.close();
    });
    for (number, what) in [(1, Event::Isolated), (2, Event::Closed)] {
        let event = events.try_recv().unwrap().unwrap();
        assert_eq!((event.number, event.what), (number, what));
    }
}

/// A `tracing` layer in which each event causes two more, so that the outbox never empties by
/// itself. It counts the events that it receives.
struct Floods(CircuitBreaker, std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Floods {
    fn on_event(&self, _: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        (0..2).for_each(|_| drop(self.0.try_acquire().unwrap_err()));
    }
}

/// Regression: a call that sent the events of other tasks never returned, and its queue grew
/// without bound.
#[test]
fn a_call_sends_a_bounded_number_of_events_and_counts_dropped_ones() {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let (breaker, _hand) = breaker();
        let mut events = breaker.events();
        breaker.isolate();
        let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let listener = tracing_subscriber::registry().with(Floods(breaker.clone(), sent.clone()));
        let mut calls = Vec::new();
        tracing::subscriber::with_default(listener, || {
            for _ in 0..3 {
                let before = sent.load(Ordering::SeqCst);
                drop(breaker.try_acquire().unwrap_err());
                calls.push(sent.load(Ordering::SeqCst) - before);
            }
        });
        // Events from now on come after the dropped ones.
        drop(breaker.try_acquire().unwrap_err());
        let (mut told, mut missed, mut last) = (0, 0, 0);
        loop {
            match events.try_recv() {
                Ok(Some(event)) => (told, last) = (told + 1, event.number),
                Ok(None) => break,
                Err(steadfast::observe::Missed::Events(n)) => missed += n,
                Err(other) => panic!("{other}"),
            }
        }
        done.send((calls, told, missed, last, breaker.snapshot().rejected)).unwrap();
    });
    let (calls, told, missed, last, rejected) =
        ended.recv_timeout(Duration::from_secs(60)).expect("the call sends for ever");
    assert!(calls.iter().all(|sent| (1..=2_200).contains(sent)), "{calls:?}");
    // Each rejection, and the isolation, has a number: received, or counted as missed.
    assert_eq!(told + missed, rejected + 1);
    assert_eq!(last, rejected + 1);
    assert!(missed > 0);
}

/// One caller is blocked in a `tracing` layer: the others neither wait nor collect events.
#[test]
fn events_that_wait_for_a_slow_sender_are_bounded() {
    let (breaker, _hand) = breaker();
    breaker.isolate();
    let mut events = breaker.events();
    let (held, release) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    struct Holds(std::sync::Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>);
    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Holds {
        fn on_event(&self, _: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            let channels = self.0.lock().unwrap().take();
            if let Some((held, release)) = channels {
                held.send(()).unwrap();
                release.recv().unwrap();
            }
        }
    }
    let layer = Holds(std::sync::Mutex::new(Some((held.0, release.1))));
    let slow = breaker.clone();
    let sender = std::thread::spawn(move || {
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || drop(slow.try_acquire()));
    });
    held.1.recv().unwrap();
    for _ in 0..100_000 {
        assert!(breaker.try_acquire().is_err());
    }
    release.0.send(()).unwrap();
    sender.join().unwrap();
    assert!(breaker.try_acquire().is_err());
    let (mut told, mut missed) = (0, 0);
    loop {
        match events.try_recv() {
            Ok(Some(_)) => told += 1,
            Ok(None) => break,
            Err(steadfast::observe::Missed::Events(n)) => missed += n,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(told + missed, 100_002);
    assert!(told < 1_100, "{told} were kept");
}
