//! Ten components of the crate that take part in one document.
use std::sync::Arc;

use serde::Deserialize;
use steadfast::{
    cache_aside::{CacheAside, CacheAsideConfig},
    circuit_breaker::{KeyedBreakers, KeyedBreakersConfig},
    codec::Codec,
    hedge::{Hedge, HedgeConfig},
    lease::StoreLease,
    queue::InMemoryQueue,
    queue_listener::{QueueListener, QueueListenerConfig},
    reconfiguration::{Reconfigurer, ReconfigurerConfig, SubmitError},
    saga::{Action, Compensation, Plan, Saga, SagaConfig, Step, StepOutcome},
    scheduler::{Scheduler, SchedulerConfig},
    standard::{Standard, StandardConfig},
    store::InMemoryStore,
    stream::{StoreTopic, StreamProcessor, StreamProcessorConfig},
    throttling::{Gauge, KeyedRateLimitConfig, KeyedRateLimiter, Shedder, ShedderConfig},
    time::block_on,
};

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    payments: StandardConfig,
    orders: QueueListenerConfig,
    prices: CacheAsideConfig,
    tenants: KeyedRateLimitConfig,
    hosts: KeyedBreakersConfig,
    search: HedgeConfig,
    overload: ShedderConfig,
    trips: SagaConfig,
    bookings: SchedulerConfig,
    audit: StreamProcessorConfig,
}

const FIRST: &str = r#"
    payments = { retry = { max_attempts = 3 } }
    orders = { batch = 5 }
    prices = { capacity = 5 }
    tenants = { limit = { permits = 7 } }
    hosts = { max_open = 0.5 }
    search = { delay = "1s" }
    overload = { limits = { cpu = { soft = 0.7, hard = 0.9 } } }
    trips = { max_attempts = 3 }
    bookings = { concurrency = 3 }
    audit = { max_in_flight = 3 }
"#;

struct Nothing;

impl Action<u8> for Nothing {
    async fn execute(&self, _: &Step<u8>) -> StepOutcome<u8> {
        StepOutcome::completed()
    }
}

impl Compensation<u8> for Nothing {
    async fn compensate(&self, _: &Step<u8>) -> StepOutcome<u8> {
        StepOutcome::completed()
    }
}

// Guarantee: reconfiguration 1.
#[test]
fn ten_components_take_part_in_one_document() {
    let first: Document = toml::from_str(FIRST).unwrap();
    let store = Arc::new(InMemoryStore::new());
    let payments = Standard::new(first.payments.clone()).unwrap();
    let orders = QueueListener::new(Arc::new(InMemoryQueue::new("orders")), first.orders).unwrap();
    let prices = CacheAside::<u32, u32>::new(first.prices).unwrap();
    let tenants = Arc::new(KeyedRateLimiter::<String>::new(first.tenants.clone()).unwrap());
    let hosts = KeyedBreakers::<String>::new(first.hosts).unwrap();
    let search = Hedge::new(first.search).unwrap();
    let overload = Shedder::builder(first.overload.clone()).gauge("cpu", Gauge::new()).build().unwrap();
    let codec = Codec::new(|n: &u8| Ok::<_, String>(vec![*n]), |bytes| Ok::<_, String>(bytes[0]));
    let trips = Saga::new("trip", store.clone(), codec, Plan::new().step("seat", Nothing), first.trips).unwrap();
    let bookings = Scheduler::new(trips.clone(), Arc::new(InMemoryQueue::new("bookings")), first.bookings).unwrap();
    let topic = block_on(StoreTopic::open(store.clone(), "audit", 2)).unwrap();
    let leases = Arc::new(StoreLease::new(store.clone()).unwrap());
    let audit = StreamProcessor::new(topic, "billing", leases, store, first.audit).unwrap();

    let changes = Reconfigurer::builder(first.clone(), ReconfigurerConfig::default())
        .part("payments", |d: &mut Document| &mut d.payments, payments.clone())
        .part("orders", |d| &mut d.orders, orders.clone())
        .part("prices", |d| &mut d.prices, prices.clone())
        .part("tenants", |d| &mut d.tenants, tenants.clone())
        .part("hosts", |d| &mut d.hosts, hosts.clone())
        .part("search", |d| &mut d.search, search.clone())
        .part("overload", |d| &mut d.overload, overload.clone())
        .part("trips", |d| &mut d.trips, trips.clone())
        .part("bookings", |d| &mut d.bookings, bookings.clone())
        .part("audit", |d| &mut d.audit, audit.clone())
        .build()
        .unwrap();
    let in_effect = || Document {
        payments: payments.config(),
        orders: orders.config(),
        prices: prices.config(),
        tenants: tenants.config(),
        hosts: hosts.config(),
        search: search.config(),
        overload: overload.config(),
        trips: trips.config(),
        bookings: bookings.config(),
        audit: audit.config(),
    };
    let all = [
        ("payments", "max_attempts = 3 } }", "max_attempts = 5 } }", "max_attempts = 0 } }"),
        ("orders", "batch = 5", "batch = 9", "batch = 0"),
        ("prices", "capacity = 5", "capacity = 9", "ttl = \"0s\""),
        ("tenants", "permits = 7", "permits = 9", "permits = 0"),
        ("hosts", "max_open = 0.5", "max_open = 0.3", "max_open = 7.0"),
        ("search", "delay = \"1s\"", "delay = \"2s\"", "delay = \"2s\", max_attempts = 0"),
        ("overload", "soft = 0.7", "soft = 0.8", "soft = 7.0"),
        ("trips", "trips = { max_attempts = 3", "trips = { max_attempts = 9", "trips = { max_attempts = 0"),
        ("bookings", "concurrency = 3", "concurrency = 9", "concurrency = 0"),
        ("audit", "max_in_flight = 3", "max_in_flight = 9", "max_in_flight = 0"),
    ];
    let next = all.iter().fold(FIRST.to_owned(), |text, (_, old, new, _)| text.replace(old, new));
    // With one bad section each nothing of the other nine changes.
    for (name, _, new, bad) in all {
        let bad: Document = toml::from_str(&next.replace(new, bad)).unwrap();
        let error = block_on(changes.submit(bad)).unwrap_err();
        assert!(matches!(&error, SubmitError::Vetoed { part, .. } if part == name), "{name}: {error}");
        assert_eq!(in_effect(), first, "{name}");
    }
    let next: Document = toml::from_str(&next).unwrap();
    let applied = block_on(changes.submit(next.clone())).unwrap();
    assert_eq!(applied.parts, all.map(|(name, ..)| name));
    assert_eq!(in_effect(), next);
    // A setting that is fixed in use, in one part, is refused for all.
    let mut fixed = first.clone();
    fixed.orders = fixed.orders.visibility(std::time::Duration::from_secs(60));
    let error = block_on(changes.submit(fixed)).unwrap_err();
    assert!(
        matches!(&error, SubmitError::NeedsRestart { part, error } if part == "orders" && error.field() == "visibility")
    );
    assert_eq!(in_effect(), next);
}
