//! Events: typed, ordered, numbered without gaps, and never a delay for a call.
use std::{
    sync::{Arc, Barrier},
    time::Duration,
};

use steadfast::{
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent as Event},
    observe::Missed,
    time::Clock,
};

fn breaker() -> (CircuitBreaker, steadfast::testing::ManualClock) {
    let (clock, time) = Clock::manual();
    (CircuitBreaker::builder(CircuitBreakerConfig::default()).name("db").clock(&clock).build().unwrap(), time)
}

#[test]
fn events_are_numbered_without_gaps_in_order_of_occurrence() {
    const THREADS: usize = 4;
    let (breaker, _hand) = breaker();
    let mut events = breaker.events();
    let barrier = Arc::new(Barrier::new(THREADS));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                barrier.wait();
                for _ in 0..50 {
                    breaker.isolate();
                    breaker.close();
                }
            });
        }
    });
    for number in 1..=(THREADS as u64 * 100) {
        let event = events.try_recv().unwrap().unwrap();
        assert_eq!((event.number, event.source.as_ref().map(|n| n.as_str())), (number, Some("db")));
    }
    assert_eq!(events.try_recv(), Ok(None));
}

#[test]
fn a_slow_listener_delays_no_call_and_learns_how_many_events_it_missed() {
    let (breaker, _hand) = breaker();
    let mut slow = breaker.events();
    for _ in 0..2000 {
        breaker.isolate();
    }
    assert_eq!(slow.try_recv(), Err(Missed::Events(2000 - 1024)));
    assert_eq!(slow.try_recv().unwrap().unwrap().number, 2000 - 1024 + 1);
}

#[test]
fn a_panicking_listener_breaks_no_call() {
    let (breaker, time) = breaker();
    let mut events = breaker.events();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::spawn(async move {
            events.recv().await.unwrap();
            panic!("a listener's own trouble");
        });
        breaker.isolate();
        assert!(listener.await.unwrap_err().is_panic());
        breaker.close();
        assert!(time.block_on(breaker.call(|| async { Ok::<_, ()>(()) })).is_ok());
    });
}

#[test]
fn a_waiting_listener_is_woken_and_a_dropped_recv_loses_no_event() {
    let (breaker, _hand) = breaker();
    let mut events = breaker.events();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        drop(Box::pin(events.recv()));
        let (event, ()) = futures::join!(events.recv(), async { breaker.isolate() });
        assert_eq!(event.unwrap().what, Event::Isolated);
    });
    drop(breaker);
    assert_eq!(runtime.block_on(events.recv()), Err(Missed::Closed));
}

#[test]
fn no_event_is_kept_without_a_listener() {
    let (breaker, time) = breaker();
    breaker.isolate();
    breaker.force_open(Duration::from_secs(1));
    let mut events = breaker.events();
    assert_eq!(events.try_recv(), Ok(None));
    time.advance(Duration::from_secs(1));
    drop(breaker.try_acquire());
    let first = events.try_recv().unwrap().unwrap();
    assert_eq!((first.number, first.what, first.at), (1, Event::HalfOpened, time.now()));
}

/// The lines that a subscriber received.
#[derive(Clone, Default)]
struct Told(Arc<std::sync::Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Told {
    fn on_new_span(
        &self,
        span: &tracing::span::Attributes<'_>,
        _: &tracing::span::Id,
        _: tracing_subscriber::layer::Context<'_, S>,
    ) {
        let mut line = span.metadata().name().to_owned();
        span.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            line += &format!(" {field}={value:?}");
        });
        self.0.lock().unwrap().push(line);
    }

    fn on_record(
        &self,
        _: &tracing::span::Id,
        values: &tracing::span::Record<'_>,
        _: tracing_subscriber::layer::Context<'_, S>,
    ) {
        values.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            self.0.lock().unwrap().push(format!("{field}={value:?}"));
        });
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let mut line = event.metadata().target().to_owned();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            line += &format!(" {field}={value:?}");
        });
        self.0.lock().unwrap().push(line);
    }
}

#[test]
fn calls_attempts_and_events_are_traced() {
    use steadfast::{
        Pipeline,
        retry::{Retry, RetryConfig},
        testing::ScriptedService,
    };
    use tracing_subscriber::layer::SubscriberExt;
    let told = Told::default();
    let subscriber = tracing_subscriber::registry().with(told.clone());
    tracing::subscriber::with_default(subscriber, || {
        let (clock, time) = Clock::manual();
        let service = ScriptedService::new("503, ok", &clock).unwrap();
        let retry = Retry::builder(RetryConfig::default().idempotent(true))
            .name("mail")
            .clock(&clock)
            .delays(|| std::iter::repeat(Duration::from_millis(7)))
            .build()
            .unwrap();
        let pipeline = Pipeline::new().named("mail").then(retry).classify(ScriptedService::classify);
        time.block_on(pipeline.call(|| service.call())).unwrap();
        time.block_on(pipeline.boxed().call(|| service.call())).unwrap();
    });
    let told = told.0.lock().unwrap();
    assert_eq!(
        *told,
        [
            "call pipeline=\"mail\"",
            "attempt number=1",
            "steadfast::retry message=retrying retry=\"mail\" attempt=1 kind=Some(Overloaded) cause=overloaded delay=7ms",
            "attempt number=2",
            "steadfast::retry message=recovered retry=\"mail\" attempts=2",
            "attempts=2",
            "ok=true",
            "call pipeline=\"mail\"",
            "attempt number=1",
            "attempts=1",
            "ok=true",
        ]
    );
}

/// Target and level of each event that a subscriber received.
#[derive(Clone, Default)]
struct Levels(Arc<std::sync::Mutex<Vec<(String, tracing::Level)>>>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Levels {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        self.0.lock().unwrap().push((event.metadata().target().to_owned(), *event.metadata().level()));
    }
}

#[test]
fn each_policy_traces_under_its_own_target_and_a_fitting_level() {
    use steadfast::{
        hedge::{Hedge, HedgeConfig},
        retry::{Retry, RetryConfig},
        testing::ScriptedService,
        throttling::{Quota, RateLimiter},
        timeout::Timeout,
    };
    use tracing::Level;
    use tracing_subscriber::layer::SubscriberExt;
    let told = Levels::default();
    let (clock, time) = Clock::manual();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(told.clone()), || {
        let saw = |room: &str, level| {
            let last = told.0.lock().unwrap().pop();
            assert_eq!(last, Some((format!("steadfast::{room}"), level)));
        };
        let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
        breaker.force_open(Duration::from_secs(1));
        saw("circuit_breaker", Level::WARN);
        breaker.try_acquire().map(drop).unwrap_err();
        saw("circuit_breaker", Level::DEBUG);
        time.advance(Duration::from_secs(1));
        drop(breaker.try_acquire());
        saw("circuit_breaker", Level::INFO);
        let limiter = RateLimiter::builder(Quota::per_second(1)).clock(&clock).build().unwrap();
        limiter.try_acquire().and_then(|()| limiter.try_acquire()).unwrap_err();
        saw("throttling", Level::DEBUG);
        let hang = ScriptedService::new("hang", &clock).unwrap();
        let timeout = Timeout::builder(Duration::from_secs(1)).clock(&clock).build();
        time.block_on(timeout.call(|| hang.call())).unwrap_err();
        saw("call", Level::WARN); // the outcome
        saw("timeout", Level::DEBUG);
        let fails = ScriptedService::new("500", &clock).unwrap();
        let retry =
            Retry::builder(RetryConfig::default().idempotent(true).max_attempts(2)).clock(&clock).build().unwrap();
        time.block_on(retry.call(|| fails.call())).unwrap_err();
        saw("call", Level::WARN); // the outcome
        saw("retry", Level::DEBUG); // gave up
        saw("retry", Level::DEBUG); // retrying
        let wrong = ScriptedService::new("400", &clock).unwrap();
        let pipeline = steadfast::Pipeline::new().then(retry).classify(ScriptedService::classify);
        time.block_on(pipeline.call(|| wrong.call())).unwrap_err();
        saw("retry", Level::DEBUG); // nothing to retry
        let slow = ScriptedService::new("hang, ok", &clock).unwrap();
        let hedge = Hedge::builder(HedgeConfig::after(Duration::from_millis(5)).idempotent(true))
            .clock(&clock)
            .build()
            .unwrap();
        time.block_on(hedge.call(|| slow.call())).unwrap();
        saw("hedge", Level::DEBUG);
    });
}

#[test]
fn fallbacks_and_operation_names_are_traced() {
    use steadfast::{
        Pipeline,
        call::{OperationName, named},
        chaos::{Chaos, ChaosConfig, ChaosRule},
        fallback::{Fallback, FallbackConfig},
        testing::ScriptedService,
    };
    use tracing_subscriber::layer::SubscriberExt;
    static PRICE: OperationName = OperationName::new("price");
    let told = Told::default();
    let subscriber = tracing_subscriber::registry().with(told.clone());
    tracing::subscriber::with_default(subscriber, || {
        let (clock, time) = Clock::manual();
        let service = ScriptedService::new("503", &clock).unwrap();
        let fallback = Fallback::builder(FallbackConfig::default()).name("yesterday").clock(&clock).build().unwrap();
        let rule = ChaosRule::latency(Duration::ZERO, Duration::from_nanos(1), 1.0).operations(["none"]);
        let chaos = Chaos::builder(ChaosConfig::of([rule])).name("storm").clock(&clock).build().unwrap();
        chaos.set_enabled(false);
        let pipeline = Pipeline::new().named("shop").then(fallback).then(chaos).classify(ScriptedService::classify);
        let price = || named(&PRICE, || service.call());
        let answer = time.block_on(pipeline.call_or_marked(price(), |_| std::future::ready(Ok(7)))).unwrap();
        assert_eq!((answer.is_degraded(), answer.into_value()), (true, 7));
        assert!(time.block_on(pipeline.boxed().call_or(price(), |_| service.call())).is_err());
    });
    let told = told.0.lock().unwrap();
    let failed = "steadfast::fallback message=the fallback also failed fallback=\"yesterday\" after=overloaded";
    assert_eq!(
        *told,
        [
            "steadfast::chaos message=chaos disabled chaos=\"storm\"",
            "call pipeline=\"shop\"",
            "attempt operation=\"price\" number=1",
            "steadfast::fallback message=fell back fallback=\"yesterday\" after=overloaded",
            "attempts=1",
            "ok=true",
            "call pipeline=\"shop\"",
            "attempt operation=\"price\" number=1",
            &format!("{failed} kind=Some(Overloaded)"),
            "steadfast::call message=call failed pipeline=\"shop\" operation=\"price\" attempts=1 kind=Some(Overloaded) \
             cause=overloaded fallback_failed=true",
            "attempts=1",
            "ok=false",
        ]
    );
}
