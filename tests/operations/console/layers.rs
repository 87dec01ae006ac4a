//! Pipelines as their layers, and the policies of calls.
use std::sync::Arc;

use serde_json::{Value, json};
use steadfast::{
    Pipeline,
    cache_aside::{CacheAside, CacheAsideConfig},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, State},
    console::Calls,
    hedge::{Hedge, HedgeConfig, HedgeDelay},
    leader_election::{LeaderElection, LeaderElectionConfig},
    lease::{InMemoryLease, StoreLease},
    queue::{InMemoryQueue, Message, QueueExt},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    store::InMemoryStore,
    stream::{StoreTopic, StreamProcessor, StreamProcessorConfig},
    throttling::{KeyedRateLimiter, Quota, RateLimitConfig, RateLimiter},
    time::Clock,
    timeout::Timeout,
};

use super::{S, act, builder, get, state};
use crate::world::MS;

fn fact(component: &Value, label: &str) -> String {
    let facts = component["facts"].as_array().unwrap();
    let fact = facts.iter().find(|fact| fact[0] == label).unwrap_or_else(|| panic!("{label}: {component}"));
    fact[1].as_str().unwrap().to_owned()
}

/// Returns the cells of the rows of a table.
fn rows(component: &Value, caption: &str) -> Vec<Vec<String>> {
    let tables = component["tables"].as_array().unwrap();
    let table = tables.iter().find(|table| table["caption"].as_str().unwrap().starts_with(caption));
    let rows = table.unwrap_or_else(|| panic!("{caption}: {component}"))["rows"].as_array().unwrap();
    let text = |cell: &Value| cell.as_str().unwrap().to_owned();
    rows.iter().map(|row| row["cells"].as_array().unwrap().iter().map(text).collect()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pipeline_shows_the_figures_of_each_layer_over_fifteen_minutes() {
    let clock = Clock::tokio();
    let retry = Retry::new(RetryConfig::default().idempotent(true).max_attempts(3)).unwrap();
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).name("bank").build().unwrap();
    let calls = Calls::new(&clock);
    let pipeline = Pipeline::new().then(calls).then(retry).then(breaker.clone()).then(Timeout::new(MS(100)));
    let console = builder().watch("pay", &pipeline).build().unwrap();
    // Three attempts that take too long.
    let slow = || {
        let pause = clock.sleep(S(9));
        async move {
            pause.await;
            Ok::<_, &str>(())
        }
    };
    pipeline.call(slow).await.unwrap_err();
    breaker.isolate();
    pipeline.call(async || Ok::<_, &str>(())).await.unwrap_err();
    breaker.close();
    pipeline.call(async || Ok::<_, &str>(())).await.unwrap();

    let pay = &state(&console).await["components"][0];
    assert_eq!((fact(pay, "calls, 15 min"), fact(pay, "layers")), ("3".to_owned(), "4".to_owned()));
    let layers = rows(pay, "Layers");
    let cells = |at: usize| layers[at][..5].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(cells(0)[..3], ["1. counter", "", "in use"]);
    assert!(cells(0)[3].starts_with("calls, 15 min: 3; failed, %: 33.3; refused, %: 33.3"), "{:?}", cells(0));
    assert!(cells(1)[3].starts_with("retries, 15 min: 2; recovered, 15 min: 0; gave up, 15 min: "), "{:?}", cells(1));
    assert_eq!((cells(2)[0], cells(2)[1], cells(2)[2], cells(2)[4]), ("3. circuit breaker", "bank", "closed", "1"));
    assert_eq!(cells(3), ["4. time-out", "", "in use", "timed out, 15 min: 3; limit: 100ms", ""]);
    assert!(
        rows(pay, "Failures and refusals")
            .contains(&vec!["refused by the circuit breaker: isolated".to_owned(), "1".to_owned()])
    );
    let part = state_of(&console, "pay", "2. retry").await;
    assert!(rows(&part, "The last 15 minutes").contains(&vec!["retried after: timeout".to_owned(), "2".to_owned()]));

    tokio::time::advance(S(900)).await;
    let part = state_of(&console, "pay", "2. retry").await;
    assert_eq!(fact(&part, "retries, 15 min"), "0");
}

async fn state_of(console: &steadfast::console::Console, component: &str, of: &str) -> Value {
    let target = format!("/state.json?component={component}&of={}", of.replace(' ', "%20"));
    serde_json::from_str::<Value>(&get(console, "ann", &target).await.text).unwrap()["components"][0].take()
}

#[tokio::test(start_paused = true)]
async fn a_layer_is_a_part_of_its_pipeline_with_its_actions_and_settings() {
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    let pipeline = Pipeline::new().then(Timeout::new(S(1))).then(breaker.clone()).then(Timeout::new(MS(100)));
    let console = builder().watch("pay", &pipeline).build().unwrap();
    let told = act(&console, "olga", ("pay", "2. circuit breaker", "isolate"), "").await;
    assert!(told.text.contains("The breaker is isolated."), "{}", told.text);
    assert_eq!(breaker.state(), State::Isolated);
    let pay = &state(&console).await["components"][0];
    assert_eq!((&pay["state"], &pay["trouble"]), (&json!("isolated"), &json!("open")));
    assert_eq!(pay["why"], "rejected by the circuit breaker: isolated manually");
    assert_eq!(pay["tables"][0]["rows"][1]["wrong"], true);
    let page = get(&console, "olga", "/?component=pay&of=1.%20time-out&do=settings").await.text;
    assert!(page.contains("limit = &quot;1s&quot;"), "{page}");
    assert!(get(&console, "olga", "/?component=pay&of=9.%20retry").await.text.contains("9. retry: gone</h1>"));
    // A breaker that has a page of its own is one trouble, not two.
    let console = builder().watch("pay", &pipeline).watch("bank", &breaker).build().unwrap();
    assert!(get(&console, "ann", "/").await.text.contains(">bank is isolated</h1>"));
}

#[tokio::test(start_paused = true)]
async fn breakers_by_key_show_the_keys_that_are_open_and_each_is_a_part() {
    let hosts = KeyedBreakers::<String>::new(CircuitBreakerConfig::default()).unwrap();
    for n in 0..60 {
        hosts.get(&format!("host-{n:02}"));
    }
    hosts.get("host-59").isolate();
    let console = builder().watch("hosts", &hosts).build().unwrap();
    let shown = &state(&console).await["components"][0];
    assert_eq!((&shown["trouble"], &shown["why"]), (&json!("open"), &json!("calls of 1 of 60 keys are rejected")));
    let keys = rows(shown, "Keys, 50 of 60");
    assert_eq!(
        (keys.len(), &keys[0][0], &keys[0][1], &keys[1][0]),
        (50, &"host-59".into(), &"isolated".into(), &"host-00".into())
    );
    act(&console, "olga", ("hosts", "host-59", "close"), "").await;
    assert_eq!(hosts.get("host-59").state(), State::Closed);
    let part = get(&console, "olga", "/?component=hosts&of=host-00").await.text;
    assert!(part.contains("do=isolate") && !part.contains("do=settings"), "{part}");
}

#[tokio::test(start_paused = true)]
async fn limits_show_their_use_and_their_room() {
    let limit = RateLimiter::new(RateLimitConfig::default().permits(4).per(S(60))).unwrap();
    let tenants = KeyedRateLimiter::<u32>::new(Quota::per_minute(2)).unwrap();
    let console = builder().watch("mails", &limit).watch("tenants", &tenants).build().unwrap();
    let admitted = (0..6).filter(|_| limit.try_acquire().is_ok()).count();
    assert_eq!(admitted, 4);
    [7, 7, 8].iter().for_each(|tenant| tenants.try_acquire(tenant).unwrap());
    let shown = &state(&console).await["components"];
    let (mails, tenants) = (&shown[0], &shown[1]);
    assert_eq!((&mails["state"], fact(mails, "in use")), (&json!("used up"), "4".to_owned()));
    assert_eq!(
        (fact(mails, "limit"), fact(mails, "refused, 15 min")),
        ("4 permits in 60 s".to_owned(), "2".to_owned())
    );
    assert_eq!((fact(tenants, "keys"), fact(tenants, "keys without room")), ("2".to_owned(), "1".to_owned()));
    assert_eq!(rows(tenants, "Keys"), [["7", "2", "0", "2 in 60s"], ["8", "1", "1", "2 in 60s"]]);
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_spent_is_full_and_a_hedge_counts_its_attempts() {
    let clock = Clock::tokio();
    let config = RetryBudgetConfig::default().ratio(0.0).min_per_second(1).window(S(2)).timeout_cost(1);
    let budget = RetryBudget::new(config).unwrap();
    let hedge = Hedge::builder(HedgeConfig::default().delay(HedgeDelay::Fixed(MS(10))).idempotent(true));
    let hedge = hedge.budget(&budget).build().unwrap();
    let console = builder().watch("budget", &budget).watch("hedge", &hedge).build().unwrap();
    assert_eq!(state(&console).await["components"][0]["state"], "permits retries");
    for _ in 0..3 {
        hedge
            .call(|| {
                let pause = clock.sleep(MS(50));
                async move {
                    pause.await;
                    Ok::<_, &str>(())
                }
            })
            .await
            .unwrap();
    }
    tokio::time::advance(S(1)).await;
    let shown = &state(&console).await["components"];
    assert_eq!((&shown[0]["state"], &shown[0]["trouble"]), (&json!("spent"), &json!("full")));
    assert_eq!(
        (fact(&shown[1], "hedged attempts, 15 min"), fact(&shown[1], "delay now")),
        ("2".to_owned(), "10ms".to_owned())
    );
    assert_eq!(fact(&shown[1], "suppressed, 15 min"), "1");
}

#[tokio::test(start_paused = true)]
async fn streams_elections_and_caches_show_what_an_operator_asks_for() {
    let store = Arc::new(InMemoryStore::new());
    let topic = StoreTopic::open(store.clone(), "audit", 2).await.unwrap();
    let leases = Arc::new(StoreLease::new(store.clone()).unwrap());
    let queue = InMemoryQueue::new("dead readings");
    queue.send_one(Message::new("an event that failed")).await.unwrap();
    let stream = StreamProcessor::builder(topic, "billing", leases, store, StreamProcessorConfig::default());
    let stream = stream.dead_letters(Arc::new(queue)).build().unwrap();
    let config = LeaderElectionConfig::of_term(S(10));
    let nightly = LeaderElection::new(Arc::new(InMemoryLease::new()), "nightly", config).unwrap();
    let leadership = nightly.campaign().await.unwrap();
    let prices = CacheAside::<u32, u32>::new(CacheAsideConfig::default()).unwrap();
    let console = builder().watch("readings", &stream).watch("nightly", &nightly).watch("prices", &prices);
    let console = console.build().unwrap();
    let shown = &state(&console).await["components"];
    assert_eq!((fact(&shown[0], "dead letters"), rows(&shown[0], "Partitions").len()), ("1".to_owned(), 2));
    let part = state_of(&console, "readings", "partition 1").await;
    assert_eq!((fact(&part, "offset: finished up to"), fact(&part, "lost")), ("0".to_owned(), "0".to_owned()));
    let left = fact(&shown[1], "term ends in");
    assert!(left.ends_with(" s") && left != "0 s", "{left}");
    assert_eq!(rows(&shown[2], "Tiers")[1], ["remote", "none", "0", "0"]);
    drop(leadership);
}
