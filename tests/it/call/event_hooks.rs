//! Hooks of events: they run where an event is sent, in order, without locks.
use std::{
    future::ready,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

use steadfast::{
    Builder, HasEvents, Pipeline,
    cache_aside::{CacheAside, CacheAsideEvent},
    chaos::{Chaos, ChaosEvent},
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent, KeyedBreakers, SharedCircuitBreaker,
        SharedCircuitBreakerEvent, State, Transition,
    },
    fallback::{Fallback, FallbackEvent},
    hedge::{Hedge, HedgeEvent},
    journal::{Journal, JournalEvent},
    leader_election::{LeaderElection, LeaderElectionEvent},
    observe::{Event, Missed},
    queue_listener::{QueueListener, QueueListenerEvent},
    retry::{Retry, RetryConfig, RetryEvent},
    sharding::{ShardDirectory, ShardDirectoryConfig, ShardId, ShardMap, ShardingEvent},
    standard::{Standard, StandardConfig, StandardRegistry, StandardRegistryConfig},
    store::InMemoryStore,
    testing::ScriptedService,
    throttling::{
        AdaptiveLimiter, ClientThrottle, ConcurrencyLimiter, Degradation, DegradationEvent, KeyedRateLimiter, Quota,
        RateLimitConfig, RateLimiter, SharedRateLimitEvent, SharedRateLimiter, Shedder, ThrottlingEvent,
    },
    time::Clock,
    timeout::{Timeout, TimeoutEvent},
};

type Seen<E> = Arc<Mutex<Vec<E>>>;

fn breaker(clock: &Clock) -> Builder<CircuitBreaker> {
    CircuitBreaker::builder(CircuitBreakerConfig::default()).name("db").clock(clock)
}

fn take<E>(seen: &Seen<E>) -> Vec<E> {
    std::mem::take(&mut *seen.lock().unwrap())
}

/// Returns a hook that notes the number and the event.
fn note<E: Clone + Send>(seen: &Seen<(u64, E)>) -> impl Fn(&Event<E>) + Send + Sync + use<E> {
    let seen = seen.clone();
    move |event| seen.lock().unwrap().push((event.number, event.what.clone()))
}

#[test]
fn a_hook_has_seen_an_event_when_the_call_returns_and_sees_all_in_order() {
    let (clock, time) = Clock::manual();
    let (seen, changes) = (Seen::default(), Seen::default());
    let sources = Seen::<Option<String>>::default();
    let noted = sources.clone();
    let breaker = breaker(&clock)
        .on_event(note::<CircuitBreakerEvent>(&seen))
        .on_event(note::<Transition>(&changes))
        .on_event(move |event: &Event<CircuitBreakerEvent>| {
            noted.lock().unwrap().push(event.source.as_ref().map(|name| name.as_str().to_owned()));
        })
        .build()
        .unwrap();
    breaker.isolate();
    assert_eq!(take(&seen), [(1, CircuitBreakerEvent::Isolated)]);
    breaker.close();
    breaker.force_open(Duration::from_secs(1));
    time.advance(Duration::from_secs(1));
    drop(breaker.try_acquire());
    let seen: Vec<_> = take(&seen).into_iter().map(|(number, _)| number).collect();
    assert_eq!(seen, [2, 3, 4]);
    let states: Vec<_> = take(&changes).into_iter().map(|(_, change)| change.to).collect();
    assert_eq!(states, [State::Isolated, State::Closed, State::Open, State::HalfOpen]);
    assert_eq!(take(&sources), vec![Some("db".to_owned()); 4]);
}

#[test]
fn hooks_run_in_the_order_in_which_they_were_added_after_subscriptions() {
    let (clock, _time) = Clock::manual();
    let order = Seen::default();
    let events = Arc::new(OnceLock::<Mutex<steadfast::observe::Subscription<CircuitBreakerEvent>>>::new());
    let mut builder = breaker(&clock);
    for n in 1..=3 {
        let (order, events) = (order.clone(), events.clone());
        builder = builder.on_event(move |_: &Event<CircuitBreakerEvent>| {
            let subscribed = events.get().unwrap().lock().unwrap().try_recv().unwrap().is_some();
            order.lock().unwrap().push((n, subscribed));
        });
    }
    let breaker = builder.build().unwrap();
    events.set(Mutex::new(breaker.events())).unwrap();
    breaker.isolate();
    assert_eq!(take(&order), [(1, true), (2, false), (3, false)]);
}

#[test]
fn a_hook_that_panics_breaks_no_call_and_hides_no_event_from_others() {
    let (clock, time) = Clock::manual();
    let seen = Seen::default();
    let panics = |_: &Event<CircuitBreakerEvent>| panic!("a hook's own trouble");
    let breaker = breaker(&clock).on_event(panics).on_event(note::<CircuitBreakerEvent>(&seen)).build().unwrap();
    let mut events = breaker.events();
    breaker.isolate();
    breaker.close();
    assert!(time.block_on(breaker.call(|| ready(Ok::<_, ()>(())))).is_ok());
    assert_eq!(take(&seen), [(1, CircuitBreakerEvent::Isolated), (2, CircuitBreakerEvent::Closed)]);
    assert_eq!(events.try_recv().unwrap().unwrap().what, CircuitBreakerEvent::Isolated);
    assert_eq!(events.try_recv().unwrap().unwrap().what, CircuitBreakerEvent::Closed);
}

#[test]
fn a_hook_may_use_its_component_and_its_own_event_comes_next() {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let (clock, _time) = Clock::manual();
        let (seen, own) = (Seen::default(), Arc::new(OnceLock::<CircuitBreaker>::new()));
        let mine = own.clone();
        let closes = move |event: &Event<CircuitBreakerEvent>| {
            if event.what == CircuitBreakerEvent::Isolated {
                let breaker = mine.get().unwrap();
                std::thread::scope(|scope| scope.spawn(|| breaker.close()).join().unwrap());
            }
        };
        let breaker = breaker(&clock).on_event(closes).on_event(note::<CircuitBreakerEvent>(&seen)).build().unwrap();
        own.set(breaker.clone()).unwrap();
        breaker.isolate();
        done.send((take(&seen), breaker.state())).unwrap();
    });
    // This long only if it never ends.
    let (seen, state) = ended.recv_timeout(Duration::from_secs(20)).expect("a lock is held while a hook runs");
    assert_eq!(seen, [(1, CircuitBreakerEvent::Isolated), (2, CircuitBreakerEvent::Closed)]);
    assert_eq!(state, State::Closed);
}

#[test]
fn a_hook_whose_event_causes_another_ends_and_sees_the_gap_of_dropped_events() {
    let (clock, _time) = Clock::manual();
    let (seen, own) = (Seen::default(), Arc::new(OnceLock::<CircuitBreaker>::new()));
    let mine = own.clone();
    // Each event causes two more, for ever.
    let again = move |_: &Event<CircuitBreakerEvent>| (0..2).for_each(|_| mine.get().unwrap().isolate());
    let breaker = breaker(&clock).on_event(again).on_event(note::<CircuitBreakerEvent>(&seen)).build().unwrap();
    own.set(breaker.clone()).unwrap();
    let mut events = breaker.events();
    breaker.isolate();
    let numbers: Vec<_> = take(&seen).into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers.len(), 128 + 128, "a batch, and as many that waited");
    breaker.close();
    let after = take(&seen)[0].0;
    assert!(after > *numbers.last().unwrap() + 1, "dropped events use up numbers: {after}");
    let told = std::iter::from_fn(|| Some(events.try_recv())).take(258);
    assert!(told.into_iter().any(|event| matches!(event, Err(Missed::Events(_)))));
}

#[test]
fn a_hook_of_a_standard_stack_sees_the_events_of_its_parts_switched_on_or_off() {
    let (clock, time) = Clock::manual();
    let seen = Seen::default();
    let noted = seen.clone();
    let limited = Arc::new(AtomicU64::new(0));
    let count = limited.clone();
    let config = StandardConfig::default().retry(RetryConfig::default().idempotent(true).max_attempts(2));
    let stack = Standard::builder(config.clone())
        .name("mail")
        .clock(&clock)
        .on_event(move |event: &Event<RetryEvent>| noted.lock().unwrap().push(format!("{:?}", event.source)))
        .on_event(move |_: &Event<ThrottlingEvent>| _ = count.fetch_add(1, Relaxed))
        .build()
        .unwrap();
    let service = ScriptedService::new("503, ok", &clock).unwrap();
    let pipeline = Pipeline::new().then(stack.clone()).classify(ScriptedService::classify);
    time.block_on(pipeline.call(|| service.call())).unwrap();
    assert_eq!(take(&seen), [r#"Some("mail.retry")"#; 2]);
    stack.reconfigure(config.rate_limit(RateLimitConfig::from(Quota::per_second(1)))).unwrap();
    time.block_on(pipeline.call(|| service.call())).unwrap();
    assert_eq!(limited.load(Relaxed), 1, "the limit changed");
}

fn limit(permits: u32) -> StandardConfig {
    StandardConfig::default().rate_limit(RateLimitConfig::from(Quota::per_second(permits)))
}

fn document(permits: u32) -> StandardRegistryConfig {
    StandardRegistryConfig::default().base(limit(permits))
}

#[test]
fn a_hook_may_use_the_stack_or_the_registry_whose_document_is_replaced() {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let stack = Arc::new(OnceLock::<Standard>::new());
        let own = stack.clone();
        let built = Standard::builder(limit(10)).on_event(move |_: &Event<ThrottlingEvent>| {
            let stack = own.get().unwrap();
            if stack.config() != limit(30) {
                stack.reconfigure(limit(30)).unwrap();
            }
        });
        let stack = stack.get_or_init(|| built.build().unwrap());
        stack.reconfigure(limit(20)).unwrap();
        assert_eq!(stack.rate_limit().unwrap().config(), RateLimitConfig::from(Quota::per_second(30)));

        let services = Arc::new(OnceLock::<StandardRegistry>::new());
        let own = services.clone();
        let built = StandardRegistry::builder(document(10)).on_event(move |_: &Event<ThrottlingEvent>| {
            let services = own.get().unwrap();
            services.get("search");
            if services.config() != document(30) {
                services.reconfigure(document(30)).unwrap();
            }
        });
        let services = services.get_or_init(|| built.build().unwrap());
        services.get("payments");
        services.reconfigure(document(20)).unwrap();
        for service in ["payments", "search"] {
            assert_eq!(services.get(service).config(), limit(30), "{service}: the newest document holds");
        }
        done.send(()).unwrap();
    });
    // This long only if it never ends.
    ended.recv_timeout(Duration::from_secs(20)).expect("a lock is held while a hook runs");
}

#[test]
fn a_hook_of_a_directory_sees_a_change_of_the_map() {
    let (clock, time) = Clock::manual();
    let seen = Seen::default();
    let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    let builder = || ShardDirectory::builder(store.clone(), "users", ShardDirectoryConfig::default()).clock(&clock);
    time.block_on(async {
        let other = builder().create(&ShardMap::lookup()).await.unwrap();
        let directory = builder().on_event(note(&seen)).open().await.unwrap();
        other.change(|map| map.pin("a", ShardId(3))).await.unwrap();
        directory.refresh().await.unwrap();
    });
    assert!(matches!(take(&seen)[..], [(1, ShardingEvent::MapChanged { from: 1, to: 2 })]));
}

/// Compiles if the builder of `X` takes hooks for events of type `E`.
fn takes<X: HasEvents<E>, E>() {}

#[test]
fn every_component_with_events_takes_hooks() {
    takes::<Timeout, TimeoutEvent>();
    takes::<Retry, RetryEvent>();
    takes::<CircuitBreaker, CircuitBreakerEvent>();
    takes::<CircuitBreaker, Transition>();
    takes::<KeyedBreakers<String>, CircuitBreakerEvent>();
    takes::<KeyedBreakers<String>, Transition>();
    takes::<SharedCircuitBreaker, SharedCircuitBreakerEvent>();
    takes::<RateLimiter, ThrottlingEvent>();
    takes::<KeyedRateLimiter<String>, ThrottlingEvent>();
    takes::<SharedRateLimiter, SharedRateLimitEvent>();
    takes::<ConcurrencyLimiter, ThrottlingEvent>();
    takes::<AdaptiveLimiter, ThrottlingEvent>();
    takes::<ClientThrottle, ThrottlingEvent>();
    takes::<Shedder, ThrottlingEvent>();
    takes::<Degradation, DegradationEvent>();
    takes::<Hedge, HedgeEvent>();
    takes::<Fallback, FallbackEvent>();
    takes::<Chaos, ChaosEvent>();
    takes::<CacheAside<String, String>, CacheAsideEvent>();
    takes::<QueueListener, QueueListenerEvent>();
    takes::<LeaderElection, LeaderElectionEvent>();
    takes::<Journal, JournalEvent>();
    takes::<Standard, HedgeEvent>();
    takes::<StandardRegistry, CircuitBreakerEvent>();
}
