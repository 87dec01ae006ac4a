//! Events, as they are sent: outside any lock, so that whoever is told may do as they like.
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
    let (clock, hand) = Clock::manual();
    (CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap().with_clock(&clock), hand)
}

/// A `tracing` layer that, told of an isolation, closes the breaker: from another thread, and again itself.
struct UsesTheBreaker(CircuitBreaker);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for UsesTheBreaker {
    fn on_event(&self, _: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if self.0.state() == State::Isolated {
            std::thread::scope(|scope| scope.spawn(|| self.0.close()).join().unwrap());
            self.0.close();
        }
    }
}

/// Ground: events are sent outside any lock. The outbox's own was held: a `tracing` layer that called back waited for ever.
#[test]
fn ground_a_listener_may_use_what_it_listens_to() {
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
    // So long only if it never ends.
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
fn ground_a_panic_in_a_tracing_layer_leaves_no_gap_and_later_events_come() {
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
